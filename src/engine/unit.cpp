#include "engine/unit.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "engine/capture_hooks.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::engine {
namespace {

flat::FlatDtypes flat_dtypes(const UnitOptions& options, at::ScalarType original, bool full_precision) {
  bool mixed = c10::isFloatingType(original) && !full_precision;
  at::ScalarType compute = mixed ? options.param_dtype.value_or(original) : original;
  at::ScalarType reduce = mixed ? options.reduce_dtype.value_or(compute) : original;
  return {original, compute, reduce, options.keep_low_precision_grads ? reduce : original};
}

}  // namespace

Unit::Unit(UnitContext& context, UnitOrigin origin, const UnitOptions& options)
    : ScheduledUnit(origin.fqns(), origin.automatic),
      sentinels(*this),
      buffers(*this),
      versions(parameters_),
      context_(&context),
      names_(std::move(origin)),
      options_(options),
      groups_(shard_groups(context.options.mesh, options.strategy, name())),
      gradients_(*this),
      gather_order_(parameters_) {
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
  flat::FlatParameter& flat = parameters_.add(std::make_unique<flat::FlatParameter>(
      std::move(parameters), dtypes, position_for_shards(), context_->options.memory, this, parameters_.count()));
  gradients_.add(flat);
  base::MutexLock lock(mutex);
  buffers.add_flat();
  return flat;
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

void Unit::retire(BufferPool& pool) {
  {
    base::MutexLock lock(mutex);
    buffers.clear(pool);
  }
  parameters_.clear();
  gradients_.clear();
  pending_cut_.reset();
}

void Unit::cut_later(std::shared_ptr<schedule::UseRecord> record) {
  pending_cut_ = std::make_unique<PendingCut>(PendingCut{std::move(record), {}});
  parameters_.front()->watch_shard(this);
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

void Unit::name_it() {
  names_.name_unit(parameters_.front()->parameters().front().fqn, parameters_.back()->parameters().back().fqn);
  parameters_.name_storages(name());
}

void Unit::rename(const std::vector<std::string>& module_fqns,
                  const std::function<std::vector<std::string>(const at::Tensor&)>& parameter_fqns) {
  names_.rename_modules(module_fqns);
  set_module_fqns(module_fqns);
  for (auto& flat : parameters_) {
    for (flat::ShardedParameter& parameter : flat->parameters()) {
      std::vector<std::string> fqns = parameter_fqns(parameter.tensor);
      parameter.fqn = fqns.at(0);
      parameter.other_fqns.assign(fqns.begin() + 1, fqns.end());
    }
  }
  name_it();
}

std::string Unit::where() const { return c10::str(context_->where(), ": unit '", name(), "'"); }

CollectiveId Unit::next_id(Pass pass) { return names_.next_collective(pass, context_->options.model); }

// ---------------------------------------------------------------- parameters

Unit::Place Unit::place(int64_t index) {
  const UnitParameters::Place at = parameters_.place(index);
  return {*parameters_[at.flat], gradients_.kept(at.flat), at.parameter};
}

void Unit::await_readers() const {
  for (const auto& flat : parameters_) {
    if (flat->shared().defined())
      groups_.shard->memory_sharing().await_readers(flat->shared(), {name(), 0, Pass::kUser});
  }
}

void Unit::set_full_precision(bool on) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    flat::FlatParameter& flat = *parameters_[i];
    const ParameterMask shown = sentinels.installed(flat);
    auto [compute, reduce] = mixed_dtypes_[i];
    flat.set_dtypes(on ? flat.dtypes().shard : compute, on ? flat.dtypes().shard : reduce);
    if (gradients_.kept(i)) {
      sentinels.install_missing(flat, shown);  // in the other dtype
      for (flat::ShardedParameter& parameter : flat.parameters()) {
        if (parameter.requires_grad && !parameter.capture_hook) hook_capture(parameter);
      }
    }
  }
}

// ---------------------------------------------------------------- gathering

bool Unit::is_pinned() const {
  base::MutexLock lock(mutex);
  return use.pinned();
}

}  // namespace fsdp::engine
