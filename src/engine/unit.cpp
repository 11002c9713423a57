#include "engine/unit.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "engine/capture_hooks.h"
#include "fsdp/memory_sharing.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::engine {
namespace {

std::vector<std::string> fqns_of(const std::vector<AnnotatedModule>& modules) {
  std::vector<std::string> fqns;
  std::transform(modules.begin(), modules.end(), std::back_inserter(fqns),
                 [](const auto& module) { return module.fqn; });
  return fqns;
}

std::string join_names(const std::vector<AnnotatedModule>& modules) {
  std::vector<std::string> fqns;
  for (const AnnotatedModule& module : modules) {
    // A child module named "root" must not get the name of the root unit.
    fqns.push_back(module.fqn.empty() ? "root" : module.fqn == "root" ? "root." : module.fqn);
  }
  return c10::Join("+", fqns);
}

flat::FlatDtypes flat_dtypes(const UnitOptions& options, at::ScalarType original, bool full_precision) {
  bool mixed = c10::isFloatingType(original) && !full_precision;
  at::ScalarType compute = mixed ? options.param_dtype.value_or(original) : original;
  at::ScalarType reduce = mixed ? options.reduce_dtype.value_or(compute) : original;
  return {original, compute, reduce, options.keep_low_precision_grads ? reduce : original};
}

}  // namespace

Unit::Unit(UnitContext& context, UnitOrigin origin, const UnitOptions& options)
    : ScheduledUnit(fqns_of(origin.modules), origin.automatic),
      sentinels(*this),
      buffers(*this),
      versions(*this),
      context_(&context),
      origin_(std::move(origin)),
      options_(options),
      name_(join_names(origin_.modules)),
      groups_(shard_groups(context.options.mesh, options.strategy, name_)) {
  set_root(false);
}

// ---------------------------------------------------------------- making

void Unit::add(std::vector<flat::ShardedParameter> parameters) {
  at::ScalarType original = parameters.front().tensor.scalar_type();
  bool full_precision = parameters.front().full_precision;
  flat::FlatParameter& flat = add_flat(std::move(parameters), original, full_precision);
  for (flat::ShardedParameter& parameter : flat.parameters()) hook_gradients(parameter);
}

void Unit::add(flat::FlatParameter::Moved parameters) {
  at::ScalarType original = parameters.shard.scalar_type();
  bool full_precision = parameters.parameters.front().full_precision;
  add_flat(std::move(parameters), original, full_precision);
}

template <typename Parameters>
flat::FlatParameter& Unit::add_flat(Parameters parameters, at::ScalarType original, bool full_precision) {
  flat::FlatDtypes dtypes = flat_dtypes(options_, original, full_precision);
  mixed_dtypes_.push_back({dtypes.compute, dtypes.reduce});
  if (context_->full_precision) dtypes.compute = dtypes.reduce = dtypes.shard;
  flat_parameters_.push_back(std::make_unique<flat::FlatParameter>(std::move(parameters), dtypes, position_for_shards(),
                                                                   context_->options.memory, this, num_parameters()));
  flat::FlatParameter& flat = *flat_parameters_.back();
  gradients_.push_back(flat.requires_grad() ? make_gradient(flat) : nullptr);
  base::MutexLock lock(mutex);
  buffers.add_flat();
  return flat;
}

std::unique_ptr<FlatGradient> Unit::make_gradient(flat::FlatParameter& flat) {
  return std::make_unique<FlatGradient>(flat, context_->options.use_orig_params, source_of_leaf_gradients(flat),
                                        [this] { return where(); });
}

flat::ShardPosition Unit::position_for_shards() {
  flat::ShardPosition position = groups_.position();
  position.cut = context_->options.shard_cut;
  if (groups_.shard && (position.cut == ShardCut::kFlat || groups_.shard->memory_sharing().takes_any_part())) {
    SharedBufferOptions options{.read_only = context_->options.read_only_parameters,
                                .any_part = position.cut == ShardCut::kRows};
    position.shared_buffer = [group = groups_.shard, id = next_id(Pass::kSetup), options](int64_t nbytes,
                                                                                          bool transient) mutable {
      options.transient = transient;
      return group->memory_sharing().buffer(nbytes, options, id);
    };
  }
  return position;
}

// Returns memory that other ranks read, if gradients are captured and reduced in the memory of the leaves' gradients
// and ranks read it in place. Otherwise returns an empty source.
BufferPool::Source Unit::source_of_leaf_gradients(const flat::FlatParameter& flat) const {
  const std::shared_ptr<Communicator>& group = groups_.replicate;
  const bool shared = group && group->memory_sharing().reads_in_place() && flat.position().factor == 1 &&
                      flat.memory().on_compute_host();
  return shared ? [group](int64_t nbytes) { return group->memory_sharing().reduction_input(nbytes); }
                : BufferPool::Source();
}

void Unit::retire(BufferPool& pool) {
  {
    base::MutexLock lock(mutex);
    buffers.clear(pool);
  }
  flat_parameters_.clear();
  gradients_.clear();
  pending_cut_.reset();
}

void Unit::cut_later(std::shared_ptr<schedule::UseRecord> record) {
  pending_cut_ = std::make_unique<PendingCut>(PendingCut{std::move(record), {}});
  flat_parameters_.front()->watch_shard(this);
}

// ---------------------------------------------------------------- origin and names

void Unit::set_root(bool on) {
  is_root_ = on;
  const std::optional<ReshardAfterForward>& reshard = options_.reshard_after_forward;
  set_stays_gathered(reshard ? !reshard->on() : is_root_ || !reshards_after_forward(options_.strategy));
}

void Unit::set_reshard_after_forward(const ReshardAfterForward& reshard) {
  options_.reshard_after_forward = reshard;
  set_root(is_root_);
}

// A unit of parameters grouped by their order has no module to be named after. It gets the names of its first and last
// parameter.
void Unit::name_it() {
  name_ = join_names(origin_.modules);
  if (origin_.automatic) {
    const std::string& first = flat_parameters_.front()->parameters().front().fqn;
    const std::string& last = flat_parameters_.back()->parameters().back().fqn;
    name_ = first == last ? first : first + ".." + last;
  }
  name_storages();
}

void Unit::rename(const std::vector<std::string>& module_fqns,
                  const std::function<std::vector<std::string>(const at::Tensor&)>& parameter_fqns) {
  for (size_t i = 0; i < origin_.modules.size(); ++i) origin_.modules[i].fqn = module_fqns.at(i);
  set_module_fqns(module_fqns);
  for (auto& flat : flat_parameters_) {
    for (flat::ShardedParameter& parameter : flat->parameters()) {
      std::vector<std::string> fqns = parameter_fqns(parameter.tensor);
      parameter.fqn = fqns.at(0);
      parameter.other_fqns.assign(fqns.begin() + 1, fqns.end());
    }
  }
  name_it();
}

void Unit::name_storages() {
  for (auto& flat : flat_parameters_) flat->name_storages(name_);
}

std::string Unit::flat_name(size_t index) const {
  return index == 0 ? c10::str(name_, ".flat_param") : c10::str(name_, ".flat_param_", index + 1);
}

std::string Unit::where() const { return c10::str(context_->where(), ": unit '", name_, "'"); }

CollectiveId Unit::next_id(Pass pass) {
  const int64_t model = context_->options.model;
  return {model == 1 ? name_ : c10::str(name_, " (model ", model, ")"), generations_[static_cast<size_t>(pass)]++,
          pass};
}

// ---------------------------------------------------------------- parameters

int64_t Unit::num_parameters() const {
  int64_t count = 0;
  for (const auto& flat : flat_parameters_) count += flat->layout().num_parameters();
  return count;
}

Unit::Place Unit::place(int64_t index) {
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    int64_t count = flat_parameters_[i]->layout().num_parameters();
    if (index < count) return {*flat_parameters_[i], gradients_[i].get(), index};
    index -= count;
  }
  TORCH_CHECK(false, "fsdp: ", where(), ": no parameter with index ", index);
}

flat::ShardedParameter& Unit::parameter(int64_t index) {
  Place p = place(index);
  return p.flat.parameters()[p.parameter];
}

bool Unit::shares_shards() const {
  return std::any_of(flat_parameters_.begin(), flat_parameters_.end(),
                     [](const auto& flat) { return flat->shared().defined(); });
}

void Unit::await_readers() const {
  for (const auto& flat : flat_parameters_) {
    if (flat->shared().defined())
      groups_.shard->memory_sharing().await_readers(flat->shared(), {name_, 0, Pass::kUser});
  }
}

uint64_t Unit::shard_version() const { return version_of_shards(flat_parameters_); }

void Unit::set_full_precision(bool on) {
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    flat::FlatParameter& flat = *flat_parameters_[i];
    const ParameterMask shown = sentinels.installed(flat);
    auto [compute, reduce] = mixed_dtypes_[i];
    flat.set_dtypes(on ? flat.dtypes().shard : compute, on ? flat.dtypes().shard : reduce);
    if (gradients_[i]) {
      sentinels.install_missing(flat, shown);  // in the other dtype
      for (flat::ShardedParameter& parameter : flat.parameters()) {
        if (parameter.requires_grad && !parameter.capture_hook) hook_capture(parameter);
      }
    }
  }
}

bool Unit::requires_grad_changed() const {
  return std::any_of(flat_parameters_.begin(), flat_parameters_.end(),
                     [](const auto& flat) { return flat->requires_grad_changed(); });
}

void Unit::check_may_follow(size_t index) const {
  const flat::FlatParameter& flat = *flat_parameters_[index];
  const std::string& first = flat.parameters().front().fqn;
  TORCH_CHECK(!gradients_[index] || !gradients_[index]->accumulating(), "fsdp: ", where(),
              ": requires_grad cannot be changed while gradients are accumulated without communication (parameter '",
              first, "' or another of its FlatParameter). Change it after the backward that reduces them");
  for (int64_t i = 1; i < flat.layout().num_parameters() && !context_->options.use_orig_params; ++i) {
    TORCH_CHECK(flat.wanted_requires_grad(i) == flat.wanted_requires_grad(0), "fsdp: ", where(),
                ": requires_grad of parameter '", flat.parameters()[static_cast<size_t>(i)].fqn,
                "' was changed and differs from that of '", first,
                "', with which it shares a leaf. Change all parameters of '", flat_name(index),
                "', or set Options::use_orig_params");
  }
}

void Unit::follow_requires_grad() {
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    if (flat_parameters_[i]->requires_grad_changed()) check_may_follow(i);
  }
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    flat::FlatParameter& flat = *flat_parameters_[i];
    if (!flat.requires_grad_changed()) continue;
    flat.follow_requires_grad();
    if (flat.requires_grad() && !gradients_[i]) gradients_[i] = make_gradient(flat);
    for (flat::ShardedParameter& parameter : flat.parameters()) {
      if (parameter.requires_grad && !parameter.capture_hook) hook_capture(parameter);
    }
  }
}

void Unit::check_membership() const {
  for (const auto& flat : flat_parameters_) {
    for (const flat::ShardedParameter& parameter : flat->parameters()) check_membership(parameter);
  }
}

void Unit::check_membership(const flat::ShardedParameter& p) const {
  const at::Tensor& tensor = p.tensor;
  bool member = seams::has_sharded_key(tensor) && seams::storage_owner(tensor) == p.owner.get();
  TORCH_CHECK(
      member, "fsdp: ", where(), ": parameter '", p.fqn,
      "' has left the engine: its data was replaced after fully_shard (assignment to .data, a conversion of "
      "the module with to(), double() or half(), or a state dict loaded by assignment). Convert and load before "
      "fully_shard, or write inside ShardedModule::with_full_params");
}

// ---------------------------------------------------------------- gradients

bool Unit::trains() const {
  return std::any_of(flat_parameters_.begin(), flat_parameters_.end(),
                     [](const auto& flat) { return flat->requires_grad(); });
}

bool Unit::captures() const {
  return std::any_of(gradients_.begin(), gradients_.end(),
                     [](const auto& gradient) { return gradient && gradient->capturing(); });
}

bool Unit::has_all_gradients() const {
  return std::all_of(gradients_.begin(), gradients_.end(), [](const auto& gradient) {
    return !gradient || !gradient->flat().requires_grad() || gradient->complete();
  });
}

bool Unit::has_frozen() const {
  return std::any_of(flat_parameters_.begin(), flat_parameters_.end(),
                     [](const auto& flat) { return flat->num_trained() < flat->layout().num_parameters(); });
}

// Throws if a leaf was replaced, because an optimizer would train copies that are never gathered.
void Unit::check_leaves(const flat::FlatParameter& flat) const {
  for (size_t k = 0; k < flat.parameters().size(); ++k) {
    TORCH_CHECK(flat.original_leaves()[k].is_alias_of(flat.shard()), "fsdp: ", where(), ": the shard of parameter '",
                flat.parameters()[k].fqn,
                "' was replaced (assignment to .data of a tensor of ShardedModule::"
                "parameters()): write into it instead");
  }
  TORCH_CHECK(flat.flat_leaf().is_alias_of(flat.shard()), "fsdp: ", where(), ": the shard of parameter '",
              flat.parameters().front().fqn, "' and others was replaced: write into it instead");
}

void Unit::notice_cleared_gradients() {
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    check_leaves(*flat_parameters_[i]);
    if (gradients_[i]) sentinels.notice_cleared(*flat_parameters_[i], *gradients_[i]);
  }
}

// ---------------------------------------------------------------- gathering

bool Unit::is_pinned() const {
  base::MutexLock lock(mutex);
  return use.pinned();
}

const std::vector<Unit*>& Unit::prefetched_by_user(Pass pass) const {
  return pass == Pass::kBackward ? backward_prefetch_ : forward_prefetch_;
}

void Unit::prefetch(Pass pass, std::vector<Unit*> units) {
  (pass == Pass::kBackward ? backward_prefetch_ : forward_prefetch_) = std::move(units);
}

}  // namespace fsdp::engine
