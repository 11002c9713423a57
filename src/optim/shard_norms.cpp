#include "fsdp/shard_norms.h"

#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "optim/agree.h"
#include "optim/norm_sum.h"

namespace fsdp {
namespace {

// The part of the norm of one original parameter that this rank knows.
struct PartialNorm {
  optim::NormSum sum;
  optim::NormGroups groups;  // that hold it
};

void check_size(const std::string& name, const at::Tensor& leaf, const at::Tensor& value) {
  TORCH_CHECK(!value.defined() || value.numel() == leaf.numel(), "fsdp: parameter_norms: the value for '", name,
              "' has ", value.numel(), " elements, but the leaf on this rank has ", leaf.numel());
}

void check_values(const ShardedModule& sharded, const std::vector<at::Tensor>& values) {
  const auto leaves = sharded.named_parameters();
  TORCH_CHECK(values.size() == leaves.size(), "fsdp: parameter_norms: ", values.size(), " values for ", leaves.size(),
              " leaves: pass one for each of parameters(), undefined where there is none");
  for (size_t i = 0; i < leaves.size(); ++i) check_size(leaves[i].first, leaves[i].second, values[i]);
}

std::vector<PartialNorm> local_norms(const engine::Engine& engine, const std::vector<at::Tensor>& values,
                                     double norm_type) {
  std::vector<PartialNorm> result;
  auto value = values.begin();
  for (const auto& unit : engine.units()) {
    for (const auto& flat : unit->flat_parameters()) {
      for (int64_t i = 0; i < flat->layout().num_parameters(); ++i) {
        const bool orig = engine.options().use_orig_params;
        const at::Tensor part = orig ? *value++ : value->defined() ? flat->slice_of(value->flatten(), i) : at::Tensor();
        result.push_back({optim::NormSum(norm_type), optim::norm_groups(*unit, *flat)});
        result.back().sum.add(optim::norm_of(part, norm_type));
      }
      if (!engine.options().use_orig_params) ++value;
    }
  }
  return result;
}

// Adds up each norm over the groups that hold it: the same groups in the same order on all ranks.
void add_up_by_group(std::vector<PartialNorm>& norms) {
  std::vector<std::pair<optim::NormGroups, std::vector<optim::NormSum*>>> by_groups;
  for (PartialNorm& norm : norms) {
    auto known =
        std::find_if(by_groups.begin(), by_groups.end(), [&](const auto& entry) { return entry.first == norm.groups; });
    if (known == by_groups.end()) known = by_groups.insert(by_groups.end(), {norm.groups, {}});
    known->second.push_back(&norm.sum);
  }
  for (const auto& [groups, sums] : by_groups) optim::add_up(groups, sums, "parameter_norms");
}

}  // namespace

std::vector<double> parameter_norms(ShardedModule& sharded, const std::vector<at::Tensor>& values, double norm_type) {
  TORCH_CHECK(norm_type > 0, "fsdp: parameter_norms: norm_type ", norm_type, " must be positive");
  const at::NoGradGuard no_grad;
  check_values(sharded, values);
  std::vector<PartialNorm> norms = local_norms(sharded.engine(), values, norm_type);
  add_up_by_group(norms);
  std::vector<double> result;
  for (const PartialNorm& norm : norms) result.push_back(norm.sum.norm());
  return result;
}

std::vector<double> parameter_norms(ShardedModule& sharded, NormOf what, double norm_type) {
  std::vector<at::Tensor> values = sharded.parameters();
  if (what == NormOf::kGradient) {
    sharded.engine().passes().settle_gradients();
    for (at::Tensor& value : values) value = value.grad();
  }
  return parameter_norms(sharded, values, norm_type);
}

}  // namespace fsdp
