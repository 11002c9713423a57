#include "binding/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "binding/whole_parameter.h"
#include "engine/engine.h"

namespace fsdp::python {
namespace {

// Combines the ranks' norms, or powers of norms, of order `type`.
double combine(double type, double a, double b) {
  if (!std::isinf(type)) return a + b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return type > 0 ? std::max(a, b) : std::min(a, b);
}

// The norm of nothing.
double neutral(double type) { return std::isinf(type) && type < 0 ? std::numeric_limits<double>::infinity() : 0.0; }

// Returns the norm of each part, stacked. torch refuses to name the largest element of a tensor without elements.
at::Tensor local_norms(const std::vector<at::Tensor>& parts, double type) {
  std::vector<at::Tensor> full, norms;
  for (const at::Tensor& part : parts) {
    if (part.numel()) full.push_back(part);
  }
  if (!full.empty()) full = at::_foreach_norm(full, type);
  auto next = full.begin();
  for (const at::Tensor& part : parts) {
    norms.push_back(part.numel() ? *next++ : at::full({}, neutral(type), part.options().requires_grad(false)));
    norms.back() = norms.back().to(parts.front().device());
  }
  return at::stack(norms);
}

// The positions of parameters, by the group over which their norms are combined. Null: this rank holds everything.
using Positions = std::vector<std::pair<Communicator*, std::vector<int64_t>>>;

Positions by_group(const std::vector<at::Tensor>& wholes) {
  Positions groups;
  for (size_t i = 0; i < wholes.size(); ++i) {
    Communicator* group = unit_of_whole(wholes[i], "norms").groups().shard.get();
    auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.first == group; });
    if (found == groups.end()) found = groups.insert(groups.end(), {group, {}});
    found->second.push_back(static_cast<int64_t>(i));
  }
  return groups;
}

void combine_over(Communicator& group, const std::vector<int64_t>& positions, double type, double* values) {
  std::vector<double> mine;
  for (int64_t position : positions) mine.push_back(values[position]);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double));
  std::fill(mine.begin(), mine.end(), neutral(type));
  for (const std::string& part : group.all_gather_bytes(bytes, {"clip_grad_norm_", 0, Pass::kUser})) {
    TORCH_CHECK(part.size() == bytes.size(), "fsdp: the norm of gradients: rank ", group.world_rank(group.rank()),
                " has ", bytes.size() / sizeof(double), " gradients, another rank has ", part.size() / sizeof(double));
    for (size_t i = 0; i < mine.size(); ++i) {
      double other = 0;
      std::memcpy(&other, part.data() + i * sizeof(double), sizeof(double));
      mine[i] = combine(type, mine[i], other);
    }
  }
  for (size_t i = 0; i < mine.size(); ++i) values[positions[i]] = mine[i];
}

}  // namespace

void Gradients::settle(const std::vector<at::Tensor>& wholes) {
  const engine::Engine* settled = nullptr;
  for (const at::Tensor& whole : wholes) {
    engine::Engine& engine = unit_of_whole(whole, "settle").engine();
    if (&engine != std::exchange(settled, &engine)) engine.passes().settle_gradients();
  }
}

at::Tensor Gradients::norms(const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& wholes, double type) {
  TORCH_CHECK_VALUE(!parts.empty() && parts.size() == wholes.size(), "fsdp: norms: ", parts.size(), " gradients of ",
                    wholes.size(), " parameters");
  const at::NoGradGuard no_grad;
  const at::Tensor norms = local_norms(parts, type);
  const bool powers = !std::isinf(type) && type != 0;
  const at::Tensor values = (powers ? norms.pow(type) : norms).to(at::kCPU, at::kDouble).contiguous();
  bool combined = false;
  for (const auto& [group, positions] : by_group(wholes)) {
    if (!group || group->size() == 1) continue;
    combine_over(*group, positions, type, values.data_ptr<double>());
    combined = true;
  }
  if (!combined) return norms;
  const at::Tensor result = values.to(norms.options());
  return powers ? result.pow(1.0 / type) : result;
}

void register_gradients(torch::Library& library) {
  library.class_<Gradients>("Gradients")
      .def_static("settle", &Gradients::settle)
      .def_static("norms", &Gradients::norms);
}

}  // namespace fsdp::python
