#include "engine/unit.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "engine/engine.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/gradient_hooks.h"
#include "torch_seams/shard_version.h"

namespace fsdp {
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

FlatDtypes flat_dtypes(const UnitOptions& options, at::ScalarType original, bool full_precision) {
  bool mixed = c10::isFloatingType(original) && !full_precision;
  at::ScalarType compute = mixed ? options.param_dtype.value_or(original) : original;
  at::ScalarType reduce = mixed ? options.reduce_dtype.value_or(compute) : original;
  return {original, compute, reduce, options.keep_low_precision_grads ? reduce : original};
}

}  // namespace

Unit::Unit(Engine& engine_, UnitOrigin origin, const UnitOptions& options)
    : ScheduledUnit(fqns_of(origin.modules), origin.automatic),
      engine(&engine_),
      origin_(std::move(origin)),
      name_(join_names(origin_.modules)),
      options_(options),
      groups_(shard_groups(engine_.mesh(), options.strategy, name_)),
      state_(UnitState::kSharded, unit_transitions()) {
  set_root(false);
}

void Unit::add(std::vector<ShardedParameter> parameters) {
  at::ScalarType original = parameters.front().tensor.scalar_type();
  bool full_precision = parameters.front().full_precision;
  add_flat(std::move(parameters), original, full_precision);
}

void Unit::add(FlatParameter::Moved parameters) {
  at::ScalarType original = parameters.shard.scalar_type();
  bool full_precision = parameters.parameters.front().full_precision;
  add_flat(std::move(parameters), original, full_precision);
}

// Returns memory that other ranks read, if gradients are captured and reduced in the memory of the leaves' gradients
// and ranks read it in place. Otherwise returns an empty source.
BufferPool::Source Unit::source_of_leaf_gradients(const FlatParameter& flat) const {
  const std::shared_ptr<Communicator>& group = groups_.replicate;
  const bool shared =
      group && group->reads_in_place() && flat.position().factor == 1 && flat.memory().on_compute_host();
  return shared ? [group](int64_t nbytes) { return group->reduction_input(nbytes); } : BufferPool::Source();
}

template <typename Parameters>
void Unit::add_flat(Parameters parameters, at::ScalarType original, bool full_precision) {
  FlatDtypes dtypes = flat_dtypes(options_, original, full_precision);
  mixed_dtypes_.push_back({dtypes.compute, dtypes.reduce});
  if (engine->full_precision()) {
    dtypes.compute = dtypes.reduce = dtypes.shard;
  }
  int64_t first_index = num_parameters();
  ShardPosition position = groups_.position();
  if (groups_.shard) {
    position.shared_buffer = [group = groups_.shard, id = next_id(Pass::kSetup),
                              read_only = engine->options().read_only_parameters](int64_t nbytes, bool passing) {
      return group->shared_buffer(nbytes, {.passing = passing, .read_only = read_only}, id);
    };
  }
  flat_parameters_.push_back(std::make_unique<FlatParameter>(std::move(parameters), dtypes, position,
                                                             engine->options().memory, this, first_index));
  FlatParameter& flat = *flat_parameters_.back();
  auto gradient = [&] {
    return std::make_unique<FlatGradient>(flat, engine->options().use_orig_params, source_of_leaf_gradients(flat),
                                          [this] { return where(); });
  };
  gradients_.push_back(flat.requires_grad() ? gradient() : nullptr);
  unsharded_.emplace_back();
  parked_.emplace_back();
}

int64_t Unit::num_parameters() const {
  int64_t count = 0;
  for (const auto& flat : flat_parameters_) {
    count += flat->layout().num_parameters();
  }
  return count;
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
  for (size_t i = 0; i < origin_.modules.size(); ++i) {
    origin_.modules[i].fqn = module_fqns.at(i);
  }
  set_module_fqns(module_fqns);
  for (auto& flat : flat_parameters_) {
    for (ShardedParameter& parameter : flat->parameters()) {
      std::vector<std::string> fqns = parameter_fqns(parameter.tensor);
      parameter.fqn = fqns.at(0);
      parameter.other_fqns.assign(fqns.begin() + 1, fqns.end());
    }
  }
  name_it();
}

void Unit::retire(BufferPool& pool) {
  TORCH_CHECK(!gathered() && !gathering(), "fsdp: ", where(), ": a unit in use cannot be cut anew");
  pool.forget(this);
  for (at::Tensor& parked : parked_) {
    pool.forget(&parked);
  }
  flat_parameters_.clear();
  gradients_.clear();
  unsharded_.clear();
  parked_.clear();
  to_be_cut.reset();
}

void Unit::name_storages() {
  for (auto& flat : flat_parameters_) {
    flat->name_storages(name_);
  }
}

std::string Unit::flat_name(size_t index) const {
  return index == 0 ? c10::str(name_, ".flat_param") : c10::str(name_, ".flat_param_", index + 1);
}

std::string Unit::where() const { return c10::str("rank ", engine->mesh().rank(), ": unit '", name_, "'"); }

Unit::Place Unit::place(int64_t index) {
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    int64_t count = flat_parameters_[i]->layout().num_parameters();
    if (index < count) {
      return {*flat_parameters_[i], gradients_[i].get(), index};
    }
    index -= count;
  }
  TORCH_CHECK(false, "fsdp: ", where(), ": no parameter with index ", index);
}

bool Unit::trains() const {
  return std::any_of(gradients_.begin(), gradients_.end(), [](const auto& gradient) { return gradient != nullptr; });
}

bool Unit::captures() const {
  return std::any_of(gradients_.begin(), gradients_.end(),
                     [](const auto& gradient) { return gradient && gradient->capturing(); });
}

bool Unit::has_all_gradients() const {
  return std::all_of(gradients_.begin(), gradients_.end(),
                     [](const auto& gradient) { return !gradient || gradient->complete(); });
}

bool Unit::has_frozen() const {
  return std::any_of(gradients_.begin(), gradients_.end(), [](const auto& gradient) { return !gradient; });
}

ShardedParameter& Unit::parameter(int64_t index) {
  Place p = place(index);
  return p.flat.parameters()[p.parameter];
}

void Unit::set_root(bool on) {
  is_root_ = on;
  const std::optional<ReshardAfterForward>& reshard = options_.reshard_after_forward;
  set_stays_gathered(reshard ? !reshard->on() : is_root_ || !reshards_after_forward(options_.strategy));
}

CollectiveId Unit::next_id(Pass pass) {
  int64_t model = engine->options().model;
  return {model == 1 ? name_ : c10::str(name_, " (model ", model, ")"), generations_[static_cast<size_t>(pass)]++,
          pass};
}

void Unit::begin_gather(BufferPool& pool, Pass pass, bool may_alias) {
  check_membership();
  state_.transition(UnitState::kGathering, [this] { return where(); });
  try {
    order_behind_writes();
    const c10::Stream& stream = engine->streams().gather;
    CurrentStreamGuard on_stream(stream);
    seams::CleanDispatchGuard clean;
    acquire_buffers(pool, may_alias);
    for (size_t i = 0; i < flat_parameters_.size(); ++i) {
      if (unsharded_[i].defined()) {
        gather_flat(i, pass, pool);
      }
    }
    issued_.record(stream);
  } catch (...) {
    give_up_gather();
    throw;
  }
}

c10::Device Unit::device() const { return engine->device(); }

void Unit::order_behind_writes() {
  if (engine->streams().apart() && ordered_version != shard_version()) {
    engine->order_gathers_behind_writes();
  }
}

bool Unit::needs_buffer(const FlatParameter& flat, bool may_alias) const {
  return !may_alias || !(flat.shard_is_whole() || flat.shared_unsharded().defined());
}

namespace {

int64_t unsharded_nbytes_of(const FlatParameter& flat) {
  return flat.layout().padded_numel() * static_cast<int64_t>(c10::elementSize(flat.dtypes().compute));
}
int64_t nbytes_in_block(const FlatParameter& flat) { return schedule::BlockPlaces::rounded(unsharded_nbytes_of(flat)); }

}  // namespace

int64_t Unit::block_nbytes() const {
  int64_t nbytes = 0;
  for (const auto& flat : flat_parameters_) {
    nbytes += needs_buffer(*flat, /*may_alias=*/true) ? nbytes_in_block(*flat) : 0;
  }
  return nbytes;
}

// Takes one block of memory for all FlatParameters, so that units and not FlatParameters share the arena.
void Unit::acquire_buffers(BufferPool& pool, bool may_alias) {
  unsharded_nbytes_ = 0;
  int64_t nbytes = 0;
  for (const auto& flat : flat_parameters_) {
    nbytes += needs_buffer(*flat, may_alias) ? nbytes_in_block(*flat) : 0;
    unsharded_nbytes_ += needs_buffer(*flat, may_alias) ? unsharded_nbytes_of(*flat) : 0;
  }
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    if (may_alias && flat_parameters_[i]->shared_unsharded().defined()) {
      unsharded_[i] = flat_parameters_[i]->shared_unsharded();
    }
  }
  if (nbytes == 0) {
    return;
  }
  Residence residence = stays_gathered() ? Residence::kStaying : Residence::kPassing;
  block_ = pool.acquire_bytes(nbytes, residence, this, nbytes - unsharded_nbytes_);
  int64_t offset = 0;
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    const FlatParameter& flat = *flat_parameters_[i];
    if (needs_buffer(flat, may_alias)) {
      unsharded_[i] = block_.narrow(0, offset, unsharded_nbytes_of(flat)).view(flat.dtypes().compute);
      offset += nbytes_in_block(flat);
    }
  }
}

void Unit::finish_gather() {
  try {
    issued_.block_current();
    for (std::unique_ptr<Work>& gather : gathers_) {
      gather->wait();
    }
  } catch (...) {
    give_up_gather();
    throw;
  }
  if (!reads_in_place()) {
    gathers_.clear();
  }
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    FlatParameter& flat = *flat_parameters_[i];
    flat.attach(unsharded_[i].defined() ? unsharded_[i] : flat.shard());
    if (unsharded_[i].defined()) {
      flat.memory().page_out(flat.shard());
    }
  }
  readers_.begin(device());
  state_.transition(UnitState::kUnsharded, [this] { return where(); });
}

// The buffers are not used again, because a collective that failed may still write to them.
void Unit::give_up_gather() {
  gathers_.clear();
  for (at::Tensor& unsharded : unsharded_) {
    unsharded.reset();
  }
  block_.reset();
  state_.transition(UnitState::kSharded, [this] { return where(); });
}

void Unit::gather_flat(size_t index, Pass pass, BufferPool& pool) {
  const at::Tensor& full = unsharded_[index];
  if (auto gather =
          parked_[index].defined() ? gather_parked(index, full, pass) : gather_shards(index, full, pass, pool)) {
    gathers_.push_back(std::move(gather));
  }
}

namespace {

// Does the only cast of a unit and pass. Values from the host are copied as they are and cast on the device. Otherwise
// the host would have to wait for the copy.
void copy_shard(const FlatParameter& flat, const at::Tensor& own, BufferPool& pool) {
  if (!flat.memory().apart() || flat.dtypes().shard == flat.dtypes().compute) {
    own.copy_(flat.shard(), /*non_blocking=*/true);
    return;
  }
  at::Tensor staged = pool.acquire(flat.layout().shard_numel(), flat.dtypes().shard, Residence::kAside);
  staged.copy_(flat.shard(), /*non_blocking=*/true);
  own.copy_(staged);
  pool.release(staged);
}

}  // namespace

std::unique_ptr<Work> Unit::gather_shards(size_t index, const at::Tensor& full, Pass pass, BufferPool& pool) {
  FlatParameter& flat = *flat_parameters_[index];
  const ShardPosition& position = flat.position();
  const bool publishes = reads_in_place(index) && flat.publishes();
  bool as_it_is = flat.dtypes().shard == flat.dtypes().compute && !flat.memory().apart() && !publishes;
  int64_t n = flat.layout().shard_numel();
  at::Tensor own = full.narrow(0, position.rank * n, n);
  if (publishes) {
    groups_.shard->await_readers(full, {name_, 0, pass});
  }
  if (position.factor == 1 || !as_it_is) {
    copy_shard(flat, own, pool);
  }
  if (position.factor == 1) {
    return nullptr;
  }
  engine->count_all_gather();
  return groups_.shard->all_gather(full, as_it_is ? flat.shard() : own, next_id(pass));
}

std::unique_ptr<Work> Unit::gather_parked(size_t index, const at::Tensor& full, Pass pass) {
  engine->count_all_gather();
  parked_written_.block_current();
  return park_group->all_gather(full, parked_[index], next_id(pass));
}

void Unit::park(BufferPool& pool) {
  if (!park_group) {
    return;
  }
  seams::CleanDispatchGuard clean;
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    if (parked_[i].defined() || reads_in_place(i)) {
      continue;
    }
    const FlatParameter& flat = *flat_parameters_[i];
    int64_t n = flat.layout().padded_numel() / park_group->size();
    parked_[i] = pool.acquire(n, flat.dtypes().compute, Residence::kStaying, &parked_[i]);
    parked_[i].copy_(unsharded_[i].narrow(0, park_group->rank() * n, n));
  }
  parked_written_.record_current(device());
}

// Uses the gather stream, because gathers were the last to read the parked part.
void Unit::unpark(BufferPool& pool) {
  CurrentStreamGuard on_stream(engine->streams().gather);
  for (at::Tensor& parked : parked_) {
    if (parked.defined()) {
      pool.release(parked);
      parked.reset();
    }
  }
}

void Unit::set_full_precision(bool on) {
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    FlatParameter& flat = *flat_parameters_[i];
    ParameterMask shown(flat.layout().num_parameters());
    for (int64_t k = 0; k < flat.layout().num_parameters(); ++k) {
      if (flat.parameters()[k].sentinel_installed) {
        shown.set(k);
      }
    }
    auto [compute, reduce] = mixed_dtypes_[i];
    flat.set_dtypes(on ? flat.dtypes().shard : compute, on ? flat.dtypes().shard : reduce);
    if (gradients_[i]) {
      show_gradients(*gradients_[i], shown);  // in the other dtype
    }
  }
}

void Unit::release(BufferPool& pool) {
  state_.transition(UnitState::kSharded, [this] { return where(); });
  release_when_unpinned = false;
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    FlatParameter& flat = *flat_parameters_[i];
    flat.detach();
    if (!unsharded_[i].defined()) {
      flat.memory().page_out(flat.shard());
    }
    unsharded_[i].reset();
  }
  readers_.end(device());
  gathers_.clear();
  if (block_.defined()) {
    pool.release(block_, static_cast<int64_t>(block_.nbytes()) - unsharded_nbytes_);
    block_.reset();
  }
}

bool Unit::shares_shards() const {
  return std::any_of(flat_parameters_.begin(), flat_parameters_.end(),
                     [](const auto& flat) { return flat->shared().defined(); });
}

bool Unit::reads_in_place() const {
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    if (reads_in_place(i)) {
      return true;
    }
  }
  return false;
}

bool Unit::holds_copies() const {
  return std::any_of(unsharded_.begin(), unsharded_.end(), [](const at::Tensor& full) { return full.defined(); });
}

bool Unit::reads_in_place(size_t flat) const {
  return unsharded_[flat].defined() && unsharded_[flat].is_same(flat_parameters_[flat]->shared_unsharded());
}

bool Unit::reads_shards() const {
  for (size_t i = 0; i < flat_parameters_.size(); ++i) {
    if (reads_in_place(i) && !flat_parameters_[i]->publishes()) {
      return true;
    }
  }
  return false;
}

void Unit::await_readers() {
  for (const auto& flat : flat_parameters_) {
    if (flat->shared().defined()) {
      groups_.shard->await_readers(flat->shared(), {name_, 0, Pass::kUser});
    }
  }
}

const at::Tensor& Unit::unsharded(const FlatParameter& flat) const {
  size_t index = 0;
  while (flat_parameters_.at(index).get() != &flat) {
    ++index;
  }
  return unsharded_[index];
}

uint64_t Unit::shard_version() const {
  uint64_t sum = 0;
  for (const auto& flat : flat_parameters_) {
    sum += seams::version_of(flat->shard());
  }
  return sum;
}

void Unit::invalidate_saved_values() {
  for (auto& flat : flat_parameters_) {
    for (ShardedParameter& parameter : flat->parameters()) {
      seams::bump_version(parameter.tensor);
    }
  }
}

void Unit::check_membership() {
  for (auto& flat : flat_parameters_) {
    for (const ShardedParameter& parameter : flat->parameters()) {
      check_membership(parameter);
    }
  }
}

void Unit::check_membership(const ShardedParameter& p) const {
  const at::Tensor& tensor = p.tensor;
  bool member = seams::has_sharded_key(tensor) && seams::storage_owner(tensor) == p.owner.get();
  TORCH_CHECK(
      member, "fsdp: ", where(), ": parameter '", p.fqn,
      "' has left the engine: its data was replaced after fully_shard (assignment to .data, a conversion of "
      "the module with to(), double() or half(), or a state dict loaded by assignment). Convert and load before "
      "fully_shard, or write inside ShardedModule::with_full_params");
  TORCH_CHECK(tensor.requires_grad() == p.requires_grad, "fsdp: ", where(), ": parameter '", p.fqn,
              "': requires_grad was changed to ", tensor.requires_grad() ? "true" : "false",
              " after fully_shard. Freeze or unfreeze before fully_shard");
}

// Throws if a leaf was replaced, because an optimizer would train copies that are never gathered.
void Unit::check_leaves(const FlatParameter& flat) const {
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
    if (!gradients_[i]) {
      continue;
    }
    std::vector<ShardedParameter>& parameters = flat_parameters_[i]->parameters();
    for (size_t k = 0; k < parameters.size(); ++k) {
      if (parameters[k].sentinel_installed && !parameters[k].tensor.grad().defined()) {
        parameters[k].sentinel_installed = false;
        gradients_[i]->clear_leaf(static_cast<int64_t>(k));
      }
    }
  }
}

void Unit::install_sentinel(FlatParameter& flat, int64_t index) {
  ShardedParameter& p = flat.parameters()[index];
  at::Tensor& gradient = p.tensor.mutable_grad();
  if (!gradient.defined()) {
    gradient = flat.make_gradient_sentinel(index, [parameter = p.owner] {
      if (auto* unit = static_cast<Unit*>(parameter->unit.load())) {
        unit->sentinel_gone(parameter->index);
      }
    });
    p.sentinel_installed = true;
    return;
  }
  TORCH_CHECK(seams::storage_owner(gradient) && seams::storage_owner(gradient) == p.sentinel_owner.lock().get(),
              "fsdp: ", where(), ": a gradient was assigned to the module's parameter '", p.fqn,
              "'. Gradients live in the shards: assign to the grad() of ShardedModule::parameters()");
}

void Unit::show_gradients(FlatGradient& gradient, const ParameterMask& captured) {
  FlatParameter& flat = gradient.flat();
  for (int64_t k = 0; k < flat.layout().num_parameters(); ++k) {
    if (captured.test(k) && !flat.parameters()[k].sentinel_installed) {
      install_sentinel(flat, k);
    }
  }
}

// Clears the shard's gradient at once, so that a step that follows sees no gradient, unless another sentinel is
// installed by now.
void Unit::sentinel_gone(int64_t index) {
  Place at = place(index);
  ShardedParameter& p = at.flat.parameters()[at.parameter];
  if (p.sentinel_installed && !p.sentinel_owner.lock()) {
    p.sentinel_installed = false;
    at.gradient->clear_leaf(at.parameter);
  }
}

}  // namespace fsdp
