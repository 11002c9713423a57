#include "optim/whole_gradients.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "optim/agree.h"
#include "optim/norm_sum.h"

namespace fsdp::optim {
namespace {

constexpr const char* kPurpose = "gradients of whole parameters";

double epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return 1e-3;
    case at::kBFloat16:
      return 8e-3;
    case at::kFloat:
      return 1e-7;
    default:
      return 1e-16;
  }
}

// Products of operands in memory of another alignment may be rounded differently, and a gradient may consist of such
// differences only.
bool differ(double a, double b, at::ScalarType dtype, double total) {
  if (!std::isfinite(a) || !std::isfinite(b)) return false;  // an overflow is somebody else's error
  const double difference = std::abs(a - b), rounding = epsilon(dtype);
  return difference > std::clamp(100 * rounding, 1e-6, 0.05) * std::max(a, b) &&
         difference > std::clamp(rounding, 1e-8, 1e-3) * total;
}

struct NamedNorm {
  std::string fqn;
  double norm;
};

// Returns the norms of this rank's parts of the gradients of whole parameters.
std::vector<NamedNorm> whole_norms(const engine::Engine& engine) {
  std::vector<NamedNorm> norms;
  for (const auto& unit : engine.units()) {
    for (const auto& flat : unit->flat_parameters()) {
      if (flat->is_part()) continue;
      for (size_t i = 0; i < flat->parameters().size(); ++i) {
        const auto index = static_cast<int64_t>(i);
        const at::Tensor& own = flat->original_leaves()[i].grad();
        const at::Tensor& all = flat->flat_leaf().grad();
        const at::Tensor gradient = own.defined() ? own : all.defined() ? flat->slice_of(all, index) : at::Tensor();
        norms.push_back({flat->parameters()[i].fqn, norm_of(gradient, 2.0)});
      }
    }
  }
  return norms;
}

// Returns the parameter whose gradients differ most between ranks.
std::string most_different(const engine::Engine& engine, Communicator& parts) {
  const std::vector<NamedNorm> norms = whole_norms(engine);
  std::vector<double> mine;
  for (const NamedNorm& one : norms) mine.push_back(one.norm);
  const std::vector<std::vector<double>> all = of_all_ranks(parts, mine, kPurpose);
  std::string found;
  double most = 0;
  for (size_t i = 0; i < norms.size(); ++i) {
    double low = norms[i].norm, high = norms[i].norm;
    for (const std::vector<double>& theirs : all) {
      low = std::min(low, theirs.at(i));
      high = std::max(high, theirs.at(i));
    }
    if (high > 0 && (high - low) / high > most) {
      most = (high - low) / high;
      found = norms[i].fqn;
    }
  }
  return found;
}

}  // namespace

void check_whole_gradients(engine::Engine& engine, const std::vector<WholeNorm>& norms, double total) {
  const std::shared_ptr<Communicator>& parts = engine.mesh().parts;
  if (!parts || parts->size() == 1) return;
  std::vector<double> mine;
  for (const WholeNorm& one : norms) mine.push_back(one.norm);
  const std::vector<std::vector<double>> all = of_all_ranks(*parts, mine, kPurpose);
  bool same = true;
  for (const std::vector<double>& theirs : all) {
    for (size_t i = 0; i < norms.size(); ++i) same &= !differ(theirs.at(i), all.front().at(i), norms[i].dtype, total);
  }
  if (same) return;
  const std::string parameter = most_different(engine, *parts);
  TORCH_CHECK(
      false, "fsdp: ", engine.mesh().where(), ": the gradient of parameter '", parameter,
      "' differs between the ranks of the tensor-parallel group, which all have the whole parameter: it is used on "
      "parts of the values. Give its module a rule with SplitStyle::kSharedByParts, and let the ranks of the group "
      "read the same samples and draw the same random numbers");
}

}  // namespace fsdp::optim
