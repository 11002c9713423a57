#include "engine/reduction.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <optional>
#include <utility>

#include "comm/fake_communicator.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/dispatch_key.h"

namespace fsdp {

FlatGradient::FlatGradient(FlatParameter& flat, bool use_orig_params, std::function<std::string()> where)
    : flat_(flat),
      use_orig_params_(use_orig_params),
      where_(std::move(where)),
      state_(GradientState::kNone, gradient_transitions()),
      captured_(flat.layout().num_parameters()),
      seen_(flat.layout().num_parameters()),
      unreplicated_captured_(flat.layout().num_parameters()) {}

// ---------------------------------------------------------------- capturing

bool FlatGradient::captures_in_place() const {
  return replicated() && flat_.dtypes().reduce == flat_.dtypes().gradient && in_flight_ == 0 &&
         !leaves_hold_gradients();
}

void FlatGradient::give_back(at::Tensor& buffer, BufferPool& pool) {
  if (buffer.defined() && (!shard_gradient_.defined() || !buffer.is_alias_of(shard_gradient_))) {
    pool.release(buffer);
  }
  buffer.reset();
}

// A round that goes on has its buffer already, unless only the all-reduce over replicas is outstanding.
void FlatGradient::begin_round(BufferPool& pool) {
  state_.transition(GradientState::kCapturing, where_);
  if (!buffer_.defined()) {
    buffer_ = captures_in_place() ? unshared_shard_gradient()
                                  : pool.acquire(flat_.layout().padded_numel(), flat_.dtypes().reduce);
  }
}

void FlatGradient::end_round() {
  buffer_.reset();
  captured_.clear();
  seen_.clear();
  carries_ = false;
}

void FlatGradient::capture(int64_t parameter, const at::Tensor& gradient, BufferPool& pool) {
  at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!lost_, "fsdp: ", where_(),
              ": a backward threw while gradients of several passes were being accumulated; ",
              "what earlier passes had brought to parameter '", flat_.parameters()[parameter].fqn,
              "' was lost with it. Call ShardedModule::zero_grad (or reset) and begin the step again");
  if (!capturing()) {
    begin_round(pool);
  }
  // A gradient may itself be a view of a sharded parameter: then its unit has to be seen by the dispatcher.
  std::optional<seams::CleanDispatchGuard> clean;
  if (!seams::has_sharded_key(dense)) {
    clean.emplace();
  }
  at::NoGradGuard no_grad;
  at::Tensor place = flat_.view_in(buffer_, parameter);
  seen_.set(parameter);
  if (captured_.set(parameter)) {
    place.copy_(dense);
  } else {
    place.add_(dense);
  }
}

void FlatGradient::suspend() {
  std::lock_guard lock(mutex_);
  state_.transition(GradientState::kAccumulating, where_);
  seen_.clear();
  carries_ = true;
}

void FlatGradient::resume(BufferPool& pool) {
  std::lock_guard lock(mutex_);
  begin_round(pool);
}

void FlatGradient::discard(BufferPool& pool) {
  std::lock_guard lock(mutex_);
  if (capturing()) {
    state_.transition(GradientState::kNone, where_);
    lost_ |= carries_ || unreplicated_.defined();
    give_back(buffer_, pool);
    end_round();
  }
}

void FlatGradient::forget(BufferPool& pool) {
  std::lock_guard lock(mutex_);
  if (accumulating()) {
    state_.transition(GradientState::kNone, where_);
    give_back(buffer_, pool);
    end_round();
  }
  unreplicated_.reset();
  unreplicated_captured_.clear();
  lost_ = false;
}

// Parameters that took no part in this round contribute zero, and so does the padding.
void FlatGradient::fill_gaps() {
  const FlatLayout& layout = flat_.layout();
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    if (!captured_.test(i)) {
      buffer_.narrow(0, layout.offset(i), layout.numel(i)).zero_();
    }
  }
  if (layout.padding() > 0) {
    buffer_.narrow(0, layout.unpadded_numel(), layout.padding()).zero_();
  }
}

// ---------------------------------------------------------------- reducing

std::unique_ptr<Reduction> FlatGradient::issue(const ReduceCall& call, BufferPool& pool) {
  std::optional<seams::CleanDispatchGuard> clean(std::in_place);
  std::lock_guard lock(mutex_);
  fill_gaps();
  state_.transition(GradientState::kReducing, where_);
  auto reduction = std::make_unique<Reduction>();
  reduction->buffer = buffer_;
  reduction->captured = captured_;
  reduction->carries = carries_;
  reduction->shard = call.groups.shard.get();
  reduction->replicate = call.groups.replicate;
  if (call.communication_hook) {
    clean.reset();
    run_hook(*reduction, call, pool);
  } else if (reduction->shard) {
    issue_reduce_scatter(*reduction, call, pool);
  } else {
    issue_all_reduce(*reduction, call, pool);
  }
  end_round();
  ++in_flight_;
  return reduction;
}

// [Note: where gradients are divided]
// The sum over W ranks is divided by the divisor D, W by default. Communicators form sums in fp32, whatever the dtype
// of the contributions, so no sum overflows and no contribution has to be divided (and to underflow) before. With two
// stages, what lies between them in reduce_dtype is the mean over the shard group's F ranks, of the size of a rank's
// own gradient: it overflows, or underflows, no earlier than that did. The second stage multiplies by F / D.
void FlatGradient::issue_reduce_scatter(Reduction& reduction, const ReduceCall& call, BufferPool& pool) {
  Communicator& group = *call.groups.shard;
  bool alone = !call.groups.replicate;
  int64_t numel = flat_.layout().shard_numel();
  at::Tensor target;
  if (alone) {
    target = reduction.output = make_output(pool, in_flight_);
  } else if (call.all_reduce) {
    target = reduction.partial = pool.acquire(numel, flat_.dtypes().reduce);
    reduction.second_stage_ahead = true;
    reduction.second_scale = group.size() / call.divisor;
  } else {
    target = reduction.output = pool.acquire(numel, flat_.dtypes().shard);
    reduction.leaves_out_replicas = true;
  }
  double scale = alone ? 1.0 / call.divisor : 1.0 / group.size();
  reduction.work =
      group.reduce_scatter(target, reduction.buffer, ReduceOptions{scale}, call.id, &reduction.captured.words());
}

void FlatGradient::issue_all_reduce(Reduction& reduction, const ReduceCall& call, BufferPool& pool) {
  bool in_place = shard_gradient_.defined() && reduction.buffer.is_alias_of(shard_gradient_);
  reduction.output = in_place ? reduction.buffer : make_output(pool, in_flight_);
  reduction.work = call.groups.replicate->all_reduce(
      reduction.output, reduction.buffer, ReduceOptions{1.0 / call.divisor}, call.id, &reduction.captured.words());
}

bool FlatGradient::issue_second_stage(Reduction& reduction, const CollectiveId& id, BufferPool& pool) {
  if (!std::exchange(reduction.second_stage_ahead, false)) {
    return false;
  }
  std::unique_ptr<Work> first = std::move(reduction.work);
  first->wait();
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(mutex_);
  give_back(reduction.buffer, pool);
  if (unreplicated_.defined()) {
    reduction.partial.add_(unreplicated_);
    reduction.captured.merge(unreplicated_captured_);
    reduction.carries = true;
    unreplicated_.reset();
    unreplicated_captured_.clear();
  }
  reduction.output = make_output(pool, in_flight_ - 1);
  reduction.work = reduction.replicate->all_reduce(
      reduction.output, reduction.partial, ReduceOptions{reduction.second_scale}, id, &reduction.captured.words());
  return true;
}

void FlatGradient::run_hook(Reduction& reduction, const ReduceCall& call, BufferPool& pool) {
  TORCH_CHECK(call.all_reduce || !call.groups.replicate, "fsdp: ", where_(),
              ": requires_all_reduce = false cannot be combined with a communication hook, which does the whole "
              "reduction itself");
  bool in_place = shard_gradient_.defined() && reduction.buffer.is_alias_of(shard_gradient_);
  reduction.output =
      in_place ? pool.acquire(flat_.layout().shard_numel(), flat_.dtypes().gradient) : make_output(pool, in_flight_);
  merge_over(call.groups.shard.get(), reduction.captured, call.id);
  merge_over(call.groups.replicate.get(), reduction.captured, call.id);
  call.communication_hook(
      {call.id.name, reduction.buffer, reduction.output, call.groups.shard, call.groups.replicate, 1.0 / call.divisor});
  reduction.work = make_done_work();
}

// Where the leaves' gradients live, if nothing else is there or on its way there.
at::Tensor FlatGradient::make_output(BufferPool& pool, int64_t others_in_flight) {
  return others_in_flight == 0 && !leaves_hold_gradients()
             ? unshared_shard_gradient()
             : pool.acquire(flat_.layout().shard_numel(), flat_.dtypes().gradient);
}

void FlatGradient::finish(Reduction& reduction, const std::function<void(const at::Tensor&)>& hook, BufferPool& pool) {
  reduction.work->wait();
  if (hook && !reduction.leaves_out_replicas) {
    hook(reduction.output);
  }
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(mutex_);
  if (!reduction.buffer.is_same(reduction.output)) {
    give_back(reduction.buffer, pool);
  }
  give_back(reduction.partial, pool);
  if (reduction.leaves_out_replicas) {
    keep_unreplicated(reduction);
    give_back(reduction.output, pool);
    end_reduction(GradientState::kAccumulating);
    return;
  }
  if (use_orig_params_) {
    add_to_original_leaves(reduction);
  } else {
    add_to_flat_leaf(reduction);
  }
  give_back(reduction.output, pool);
  end_reduction(GradientState::kReduced);
}

void FlatGradient::keep_unreplicated(Reduction& reduction) {
  if (unreplicated_.defined()) {
    unreplicated_.add_(reduction.output);
  } else {
    unreplicated_ = reduction.output.clone();
  }
  unreplicated_captured_.merge(reduction.captured);
}

void FlatGradient::end_reduction(GradientState then) {
  --in_flight_;
  if (state_.is(GradientState::kReducing) && in_flight_ == 0) {
    state_.transition(then, where_);
  }
}

void FlatGradient::drop(Reduction& reduction, BufferPool& pool) {
  std::lock_guard lock(mutex_);
  end_reduction(GradientState::kReduced);
  reduction.work->wait();
  lost_ |= reduction.carries || unreplicated_.defined();
  give_back(reduction.partial, pool);
  if (!reduction.buffer.is_same(reduction.output)) {
    give_back(reduction.buffer, pool);
  }
  give_back(reduction.output, pool);
}

// ---------------------------------------------------------------- leaves

std::vector<at::Tensor> FlatGradient::leaves() const {
  return use_orig_params_ ? flat_.original_leaves() : std::vector<at::Tensor>{flat_.flat_leaf()};
}

void FlatGradient::trim() {
  std::lock_guard lock(mutex_);
  if (in_flight_ == 0 && !buffer_.defined() && !leaves_hold_gradients()) {
    shard_gradient_.reset();
  }
}

bool FlatGradient::leaves_hold_gradients() const {
  if (!use_orig_params_) {
    return flat_.flat_leaf().grad().defined();
  }
  for (const at::Tensor& leaf : flat_.original_leaves()) {
    if (leaf.numel() > 0 && leaf.grad().defined()) {
      return true;
    }
  }
  return false;
}

const at::Tensor& FlatGradient::shard_gradient() {
  if (!shard_gradient_.defined()) {
    shard_gradient_ = at::zeros_like(flat_.shard(), flat_.shard().options().dtype(flat_.dtypes().gradient));
  }
  return shard_gradient_;
}

// For a new gradient: where somebody has kept one that was cleared since, that memory is theirs.
const at::Tensor& FlatGradient::unshared_shard_gradient() {
  if (shard_gradient_.defined() && (shard_gradient_.use_count() > 1 || shard_gradient_.storage().use_count() > 1)) {
    shard_gradient_.reset();
  }
  return shard_gradient();
}

// [Note: a shard of nothing but padding]
// A rank that holds none of a FlatParameter would never be visited by the optimizer (its leaves are empty and have no
// gradient), so the version of its shard would stand still while other ranks' versions move, and the ranks would
// disagree on whether a unit that is still gathered has to be gathered again. Its first leaf therefore gets a defined
// gradient without elements.
void FlatGradient::add_to_original_leaves(const Reduction& reduction) {
  const FlatLayout& layout = flat_.layout();
  bool visit_empty = layout.owned_numel(flat_.position().rank) == 0;
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    const at::Tensor& leaf = flat_.original_leaves()[i];
    if (reduction.captured.test(i) && (leaf.numel() > 0 || std::exchange(visit_empty, false))) {
      add_to_leaf(leaf, flat_.slice_of(reduction.output, i), flat_.slice_of(shard_gradient(), i));
    }
  }
}

void FlatGradient::add_to_flat_leaf(const Reduction& reduction) {
  add_to_leaf(flat_.flat_leaf(), reduction.output, shard_gradient());
}

void FlatGradient::add_to_leaf(const at::Tensor& leaf, const at::Tensor& gradient, const at::Tensor& place) {
  at::Tensor& present = leaf.mutable_grad();
  if (present.defined()) {
    present.add_(gradient);
    return;
  }
  if (!gradient.is_set_to(place)) {
    place.copy_(gradient);
  }
  present = place;
}

at::Tensor FlatGradient::leaf_gradients(ParameterMask& defined) const {
  seams::CleanDispatchGuard clean;
  at::Tensor flat = at::zeros_like(flat_.shard(), flat_.shard().options().dtype(flat_.dtypes().gradient));
  for (int64_t i = 0; i < flat_.layout().num_parameters(); ++i) {
    const at::Tensor& whole = use_orig_params_ ? flat_.original_leaves()[i].grad() : flat_.flat_leaf().grad();
    if (whole.defined()) {
      defined.set(i);
      flat_.slice_of(flat, i).copy_(use_orig_params_ ? whole : flat_.slice_of(whole, i));
    }
  }
  return flat;
}

void FlatGradient::set_leaf_gradients(const at::Tensor& like_shard, const ParameterMask& defined) {
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(mutex_);
  if (!use_orig_params_) {
    flat_.flat_leaf().mutable_grad().reset();
    if (defined.count() > 0) {
      add_to_leaf(flat_.flat_leaf(), like_shard, shard_gradient());
    }
    return;
  }
  bool visit_empty = flat_.layout().owned_numel(flat_.position().rank) == 0;
  for (int64_t i = 0; i < flat_.layout().num_parameters(); ++i) {
    const at::Tensor& leaf = flat_.original_leaves()[i];
    leaf.mutable_grad().reset();
    if (defined.test(i) && (leaf.numel() > 0 || std::exchange(visit_empty, false))) {
      add_to_leaf(leaf, flat_.slice_of(like_shard, i), flat_.slice_of(shard_gradient(), i));
    }
  }
}

void FlatGradient::clear_leaf(int64_t parameter) {
  seams::CleanDispatchGuard clean;
  if (accumulating()) {
    captured_.clear(parameter);
    unreplicated_captured_.clear(parameter);
    if (unreplicated_.defined()) {
      flat_.slice_of(unreplicated_, parameter).zero_();
    }
  }
  if (use_orig_params_) {
    flat_.original_leaves()[parameter].mutable_grad().reset();
  } else if (at::Tensor& gradient = flat_.flat_leaf().mutable_grad(); gradient.defined()) {
    flat_.slice_of(gradient, parameter).zero_();
  }
}

}  // namespace fsdp
