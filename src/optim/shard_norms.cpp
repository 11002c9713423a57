#include "fsdp/shard_norms.h"

#include <cstring>

#include "engine/engine.h"
#include "optim/norm_sum.h"

namespace fsdp {
namespace {

// What this rank knows of one original parameter.
struct PartialNorm {
  NormSum sum;
  bool is_sharded;  // the same on all ranks
};

void check_size(const std::string& name, const at::Tensor& leaf, const at::Tensor& value) {
  TORCH_CHECK(!value.defined() || value.numel() == leaf.numel(), "fsdp: parameter_norms: the value for '", name,
              "' has ", value.numel(), " elements, but the leaf on this rank has ", leaf.numel());
}

void check_values(const ShardedModule& sharded, const std::vector<at::Tensor>& values) {
  const auto leaves = sharded.named_parameters();
  TORCH_CHECK(values.size() == leaves.size(), "fsdp: parameter_norms: ", values.size(), " values for ", leaves.size(),
              " leaves: pass one for each of parameters(), undefined where there is none");
  for (size_t i = 0; i < leaves.size(); ++i) {
    check_size(leaves[i].first, leaves[i].second, values[i]);
  }
}

std::vector<PartialNorm> local_norms(const Engine& engine, const std::vector<at::Tensor>& values, double norm_type) {
  std::vector<PartialNorm> result;
  auto value = values.begin();
  for (const auto& unit : engine.units()) {
    for (const auto& flat : unit->flat_parameters()) {
      for (int64_t i = 0; i < flat->layout().num_parameters(); ++i) {
        const bool orig = engine.options().use_orig_params;
        const at::Tensor part = orig ? *value++ : value->defined() ? flat->slice_of(value->flatten(), i) : at::Tensor();
        result.push_back({NormSum(norm_type), flat->position().factor > 1});
        result.back().sum.add(norm_of(part, norm_type));
      }
      if (!engine.options().use_orig_params) ++value;
    }
  }
  return result;
}

// Replaces the sums of sharded parameters by those over all ranks, added in rank order.
void add_up(Communicator& communicator, std::vector<PartialNorm>& norms) {
  std::vector<NormSum*> sums;
  std::vector<double> mine;
  for (PartialNorm& norm : norms) {
    if (norm.is_sharded) {
      sums.push_back(&norm.sum);
      mine.push_back(norm.sum.sum);
      norm.sum.sum = 0;
    }
  }
  if (sums.empty()) return;
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double));
  for (const std::string& part : communicator.all_gather_bytes(bytes, {"parameter_norms", 0, Pass::kUser})) {
    TORCH_CHECK(part.size() == bytes.size(), "fsdp: parameter_norms: ranks hold different numbers of parameters");
    for (size_t i = 0; i < sums.size(); ++i) {
      double other = 0;
      std::memcpy(&other, part.data() + i * sizeof(double), sizeof(double));
      sums[i]->merge(other);
    }
  }
}

}  // namespace

std::vector<double> parameter_norms(ShardedModule& sharded, const std::vector<at::Tensor>& values, double norm_type) {
  TORCH_CHECK(norm_type > 0, "fsdp: parameter_norms: norm_type ", norm_type, " must be positive");
  const at::NoGradGuard no_grad;
  check_values(sharded, values);
  std::vector<PartialNorm> norms = local_norms(sharded.engine(), values, norm_type);
  add_up(sharded.engine().communicator(), norms);
  std::vector<double> result;
  for (const PartialNorm& norm : norms) result.push_back(norm.sum.norm());
  return result;
}

std::vector<double> parameter_norms(ShardedModule& sharded, NormOf what, double norm_type) {
  std::vector<at::Tensor> values = sharded.parameters();
  if (what == NormOf::kGradient) {
    sharded.engine().notice_cleared_gradients();
    for (at::Tensor& value : values) value = value.grad();
  }
  return parameter_norms(sharded, values, norm_type);
}

}  // namespace fsdp
