#include "fuzz_training/record.h"

#include <iomanip>
#include <set>
#include <sstream>
#include <vector>

namespace fsdp::fuzz {
namespace {

std::string values_text(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  const torch::Tensor flat = tensor.detach().to(at::kDouble).flatten();
  std::ostringstream text;
  text << std::setprecision(17) << "[";
  for (int64_t i = 0; i < std::min<int64_t>(flat.numel(), 8); ++i) text << (i ? ", " : "") << flat[i].item<double>();
  text << (flat.numel() > 8 ? ", …]" : "]");
  return text.str();
}

torch::Tensor part_of(const Seen& want, const Seen& got) {
  if (!want.value.defined() || !got.part || want.value.dim() == 0) return want.value;
  torch::Tensor laid_out = torch::empty_strided(want.value.sizes(), got.part->strides, want.value.options());
  laid_out.copy_(want.value.detach());
  return laid_out.as_strided({want.value.numel()}, {1}).slice(0, got.part->begin, got.part->end);
}

bool is_close(const torch::Tensor& got, const torch::Tensor& want, double tolerance) {
  if (!got.defined() || !want.defined()) return got.defined() == want.defined();
  if (got.numel() != want.numel()) return false;
  if (got.numel() == 0) return true;
  const torch::Tensor a = got.to(at::kDouble).flatten(), b = want.to(at::kDouble).flatten();
  const double distance = (a - b).abs().max().item<double>();
  return distance <= tolerance * std::max(1.0, b.abs().max().item<double>());  // false if a value is NaN
}

std::string difference_text(const Seen& got, const torch::Tensor& want) {
  std::ostringstream text;
  if (got.part) text << "elements " << got.part->begin << " to " << got.part->end << ": ";
  text << values_text(got.value) << ", but in one process " << values_text(want);
  return text.str();
}

}  // namespace

void Record::add(const std::string& name, const torch::Tensor& value) {
  const int64_t order = static_cast<int64_t>(seen_.size());
  seen_[name] = {value.defined() ? value.detach().clone() : value, std::nullopt, order};
}

void Record::add_part(const std::string& name, const torch::Tensor& value, const Seen::Part& part) {
  add(name, value);
  seen_[name].part = part;
}

std::optional<Difference> first_difference(const Record& got, int64_t rank, const Record& of_rank, const Record& of_all,
                                           double tolerance) {
  std::optional<Difference> first;
  int64_t earliest = INT64_MAX;
  const auto differs = [&](const std::string& name, int64_t order, const std::string& text) {
    if (order >= earliest) return;
    earliest = order;
    first = Difference{name, rank, text};
  };
  for (const auto& [name, seen] : got.seen()) {
    const Record& source = of_rank.seen().count(name) > 0 ? of_rank : of_all;
    const auto want = source.seen().find(name);
    if (want == source.seen().end()) {
      differs(name, seen.order, "there is no such tensor in one process");
    } else if (const torch::Tensor part = part_of(want->second, seen); !is_close(seen.value, part, tolerance)) {
      differs(name, seen.order, difference_text(seen, part));
    }
  }
  for (const auto& [name, want] : of_rank.seen()) {
    if (got.seen().count(name) == 0) differs(name, INT64_MAX - 1, "was not seen on this rank");
  }
  return first;
}

}  // namespace fsdp::fuzz
