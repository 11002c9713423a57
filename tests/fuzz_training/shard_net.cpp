#include "fuzz_training/shard_net.h"

#include <filesystem>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "engine/engine.h"
#include "fsdp/deferred_init.h"
#include "support/training/sharding.h"

namespace fsdp::fuzz {
namespace {

template <typename Value>
Value named(const std::map<std::string, Value>& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) throw std::runtime_error("unknown value '" + name + "'");
  return found->second;
}

ShardingStrategy strategy_of(const std::string& name) {
  using enum ShardingStrategy;
  return named<ShardingStrategy>({{"full", kFullShard},
                                  {"grad_op", kShardGradOp},
                                  {"no", kNoShard},
                                  {"hybrid", kHybridShard},
                                  {"hybrid_zero2", kHybridShardZero2}},
                                 name);
}

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name == "params" || name == "keep") return std::nullopt;
  return named<at::ScalarType>({{"fp64", at::kDouble}, {"fp32", at::kFloat}, {"bf16", at::kBFloat16}}, name);
}

std::optional<ReshardAfterForward> reshard_of(int64_t reshard) {
  if (reshard < 0) return std::nullopt;
  if (reshard <= 1) return ReshardAfterForward(reshard == 1);
  return ReshardAfterForward(static_cast<int>(reshard));
}

void set_overlap(const Sharding& sharding, Options& options) {
  using enum BackwardPrefetch;
  options.backward_prefetch =
      named<BackwardPrefetch>({{"none", kNone}, {"pre", kPre}, {"post", kPost}}, sharding.backward_prefetch);
  options.forward_prefetch = sharding.forward_prefetch;
  options.limit_all_gathers = sharding.max_gathered > 0;
  if (sharding.max_gathered > 0) options.max_gathered_units = sharding.max_gathered;
  options.one_communicator = sharding.one_communicator;
}

Options options_of(const Case& training, const NetImpl& net, const std::shared_ptr<Communicator>& world) {
  const Sharding& sharding = training.sharding;
  Options options;
  options.communicator = world;
  options.sharding_strategy = strategy_of(sharding.strategy);
  if (is_hybrid(options.sharding_strategy)) options.mesh = make_mesh(world, world->size() / 2);
  options.reshard_after_forward = reshard_of(sharding.reshard);
  options.use_orig_params = sharding.orig;
  options.shard_cut = sharding.rows ? ShardCut::kRows : ShardCut::kFlat;
  options.param_dtype = dtype_of(sharding.params);
  options.reduce_dtype = dtype_of(sharding.reduce);
  options.buffer_dtype = dtype_of(sharding.buffers);
  options.keep_memory = sharding.keep_memory;
  options.cpu_offload = sharding.cpu_offload;
  if (sharding.offload_files) options.offload_path = std::filesystem::temp_directory_path();
  options.sync_module_states = sharding.sync_states;
  if (sharding.full_norms) {
    options.full_precision_classes = {"BatchNorm1d", "BatchNorm2d", "InstanceNorm1d", "LayerNorm", "GroupNorm"};
  }
  set_overlap(sharding, options);
  for (const auto& layer : net.all_layers()) {
    if (layer->spec().ignored) options.ignored_modules.push_back(layer);
  }
  return options;
}

WrapPolicy policy_of(const std::string& wrap) {
  if (wrap == "layers") return module_class_policy<SingleImpl>();
  if (wrap == "groups") return module_class_policy<GroupImpl>();
  if (wrap == "leaves") return testing::every_module();
  if (wrap == "size") return size_policy(30);
  return {};
}

bool has_sharded_parameters(const LayerImpl& layer) {
  return !layer.spec().ignored && !layer.named_parameters().is_empty();
}

// Whether the units below the module have all of its parameters.
bool has_none_of_its_own(const torch::nn::Module& module) {
  std::set<const void*> left;
  for (const at::Tensor& parameter : module.parameters()) left.insert(parameter.unsafeGetTensorImpl());
  for (const auto& below : module.modules(/*include_self=*/false)) {
    const auto* layer = dynamic_cast<const LayerImpl*>(below.get());
    if (layer == nullptr || !layer->spec().unit) continue;
    for (const at::Tensor& parameter : layer->parameters()) left.erase(parameter.unsafeGetTensorImpl());
  }
  return left.empty();
}

// Resets the options to their defaults, because a call that applies to no parameters is refused if its options differ
// from those of the units below.
Options without_choices(Options options) {
  options.sharding_strategy = ShardingStrategy::kFullShard;
  options.reshard_after_forward = std::nullopt;
  options.param_dtype = std::nullopt;
  options.reduce_dtype = std::nullopt;
  return options;
}

// Shards children before their parents.
void shard_by_hand(const NetImpl& net, const Options& options) {
  std::vector<std::pair<std::shared_ptr<LayerImpl>, Options>> units;
  for (const auto& layer : net.all_layers()) {
    const Layer& spec = layer->spec();
    if (!spec.unit || !has_sharded_parameters(*layer)) continue;
    Options own = options;
    if (!spec.strategy.empty()) {
      own.sharding_strategy = strategy_of(spec.strategy);
      own.reshard_after_forward = std::nullopt;
    }
    units.emplace_back(layer, has_none_of_its_own(*layer) ? without_choices(own) : own);
  }
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) fully_shard(*unit->first, unit->second);
}

void shard_siblings(const NetImpl& net, const Options& options) {
  std::vector<std::shared_ptr<torch::nn::Module>> siblings;
  for (const auto& layer : net.layers()) {
    if (has_sharded_parameters(*layer)) siblings.push_back(layer);
    if (siblings.size() < 2) continue;
    fully_shard(siblings, options);
    siblings.clear();
  }
}

}  // namespace

Net make_net(const Case& training, int64_t rank) {
  const auto build = [&] { return Net(training.model); };
  Net net = training.model.deferred ? deferred_init(build) : build();
  if (training.sharding.sync_states && rank > 0 && !training.model.deferred) {
    torch::NoGradGuard no_grad;
    for (auto& [name, parameter] : sharded_parameters_of(*net)) parameter.add_(1);
  }
  return net;
}

std::shared_ptr<ShardedModule> shard_net(const Case& training, NetImpl& net, const std::shared_ptr<Communicator>& world,
                                         const ExecutionOrder& order) {
  const std::string& wrap = training.sharding.wrap;
  Options options = options_of(training, net, world);
  const bool is_empty_root = wrap == "by_hand" && has_none_of_its_own(net);
  if (wrap == "by_hand") shard_by_hand(net, options);
  if (wrap == "siblings") shard_siblings(net, options);
  if (wrap == "auto") options.auto_units = AutoUnits{.target_bytes = 300, .order = order};
  options.auto_wrap_policy = policy_of(wrap);
  auto sharded = fully_shard(net, is_empty_root ? without_choices(options) : options);
  sharded->engine().gatherer().set_strict(training.sharding.strict);
  if (training.sharding.divide > 0) sharded->set_gradient_divide_factor(double(training.sharding.divide));
  sharded->set_reductions_see_norm(training.sharding.see_norm);
  return sharded;
}

}  // namespace fsdp::fuzz
