#include "engine/unit.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "engine/capture_hooks.h"
#include "fsdp/memory_sharing.h"

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
      groups_(shard_groups(context.options.mesh, options.strategy, name_)),
      gradients_(*this),
      gather_order_(*this) {
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
    if (index < count) return {*flat_parameters_[i], gradients_.kept(i), index};
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

void Unit::set_full_precision(bool on) {
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    flat::FlatParameter& flat = *flat_parameters_[i];
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

// ---------------------------------------------------------------- gradients

bool Unit::trains() const {
  return std::any_of(flat_parameters_.begin(), flat_parameters_.end(),
                     [](const auto& flat) { return flat->requires_grad(); });
}

bool Unit::has_frozen() const {
  return std::any_of(flat_parameters_.begin(), flat_parameters_.end(),
                     [](const auto& flat) { return flat->num_trained() < flat->layout().num_parameters(); });
}

// ---------------------------------------------------------------- gathering

bool Unit::is_pinned() const {
  base::MutexLock lock(mutex);
  return use.pinned();
}

}  // namespace fsdp::engine
