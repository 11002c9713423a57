#include "frontend/tensor_parts.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "frontend/mesh_choice.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::frontend {
namespace {

void check_options(const Options& options) {
  const auto refuse = [](bool set, const char* option, const char* why) {
    TORCH_CHECK(!set, "fsdp: tensor_parallel and ", option, " do not go together: ", why);
  };
  TORCH_CHECK(options.tensor_parallel->group, "fsdp: tensor_parallel: the group is not set: DeviceMesh::group(\"tp\")");
  TORCH_CHECK(options.tensor_parallel->sequence_dim.value_or(0) >= 0, "fsdp: tensor_parallel: sequence_dim is ",
              *options.tensor_parallel->sequence_dim, "; it counts from the first dimension, and is not negative");
  refuse(options.auto_units.has_value(), "auto_units", "units are cut by a policy or by annotations");
  refuse(options.shard_cut == ShardCut::kRows, "shard_cut=kRows", "rows of parts are not rows of the whole");
}

}  // namespace

std::shared_ptr<tensor_parallel::Exchange> choose_exchange(const Options& options, const Survey& surveyed,
                                                           const ProcessMesh& mesh) {
  if (!options.tensor_parallel) return nullptr;
  check_options(options);
  const std::shared_ptr<Communicator> group = watched_group(options.tensor_parallel->group, mesh, options.debug, "tp");
  const std::optional<int64_t> sequence_dim = options.tensor_parallel->sequence_dim;
  auto inner = surveyed.inner.empty() ? nullptr : surveyed.inner.front()->options().exchange;
  if (inner && inner->group() == group && inner->sequence_dim() == sequence_dim) return inner;
  return std::make_shared<tensor_parallel::Exchange>(group, sequence_dim);
}

TensorParts::TensorParts(const Options& options, std::shared_ptr<tensor_parallel::Exchange> exchange)
    : exchange_(std::move(exchange)) {
  if (!exchange_) return;
  plan_.emplace(options.tensor_parallel->plan, exchange_->rank(), exchange_->size(),
                exchange_->sequence_dim().has_value());
}

void TensorParts::cut(const FoundParameter& parameter, flat::ShardedParameter& sharded) {
  if (!plan_) return;
  std::vector<std::string> modules;
  for (const ParameterSite& site : parameter.sites) modules.push_back(site.module);
  const tensor_parallel::Split split = plan_->of(modules, parameter.fqn(), parameter.tensor.sizes());
  sharded.part = split.part;
  sharded.shared_by_parts = split.shared_by_parts;
  if (!split.part) return;
  c10::InferenceMode no_inference(false);
  c10::impl::ExcludeDispatchKeyGuard not_seen(seams::kShardedKey);
  at::NoGradGuard no_grad;
  const at::Tensor whole = sharded.value.defined() ? sharded.value : parameter.tensor.detach();
  const at::Tensor mine = flat::cut_out(whole, *split.part);
  seams::replace_data(parameter.tensor, mine);
  sharded.value.reset();
}

void TensorParts::check_plan() const {
  if (!plan_) return;
  const CollectiveId id{"tensor_parallel plan", 0, Pass::kSetup};
  const std::string plan = plan_->fingerprint() + c10::str("sequence_dim ", exchange_->sequence_dim().value_or(-1));
  const std::vector<std::string> plans = exchange_->group()->all_gather_bytes(plan, id);
  for (size_t rank = 1; rank < plans.size(); ++rank) {
    TORCH_CHECK(plans[rank] == plans.front(), "fsdp: tensor_parallel: the plan of rank ",
                exchange_->group()->world_rank(static_cast<int>(rank)), " differs from that of rank ",
                exchange_->group()->world_rank(0),
                ": pass the same rules, and the same sequence_dim, on all ranks of the group");
  }
  plan_->check_all_used();
}

}  // namespace fsdp::frontend
