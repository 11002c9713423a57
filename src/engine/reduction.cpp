#include "engine/reduction.h"

#include <ATen/ops/empty_like.h>

#include <optional>
#include <utility>

#include "comm/fake_communicator.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/dispatch_key.h"

namespace fsdp {

FlatGradient::FlatGradient(FlatParameter& flat, bool use_orig_params, BufferPool::Source leaf_source,
                           std::function<std::string()> where)
    : flat_(flat),
      leaves_(flat, use_orig_params, std::move(leaf_source)),
      where_(std::move(where)),
      state_(GradientState::kNone, gradient_transitions()),
      captured_(flat.layout().num_parameters()),
      seen_(flat.layout().num_parameters()),
      unreplicated_captured_(flat.layout().num_parameters()) {}

// ---------------------------------------------------------------- capturing

bool FlatGradient::may_capture_in_place() const {
  return replicated() && flat_.dtypes().reduce == flat_.dtypes().gradient && !flat_.memory().apart();
}

bool FlatGradient::captures_in_place() const { return may_capture_in_place() && in_flight_ == 0 && !leaves_.any(); }

int64_t FlatGradient::buffer_nbytes() const {
  int64_t numel = flat_.layout().padded_numel();
  return may_capture_in_place()
             ? 0
             : schedule::BlockPlaces::rounded(numel * static_cast<int64_t>(c10::elementSize(flat_.dtypes().reduce)));
}

void FlatGradient::give_back(at::Tensor& buffer, BufferPool& pool) {
  if (buffer.defined() && !leaves_.is_memory(buffer)) {
    pool.release(buffer);
  }
  buffer.reset();
}

void FlatGradient::begin_round(BufferPool& pool) {
  state_.transition(GradientState::kCapturing, where_);
  if (captures_in_place() || pool.keeps_memory()) {
    take_buffer(pool);
  }
}

// A continued round has its buffer already, unless only the all-reduce over replicas is outstanding.
void FlatGradient::take_buffer(BufferPool& pool) {
  if (!buffer_.defined()) {
    buffer_ = make_buffer(pool);
  }
}

at::Tensor FlatGradient::make_buffer(BufferPool& pool) {
  if (captures_in_place()) {
    return leaves_.fresh_memory();
  }
  if (may_adopt() && pool.may_adopt()) {
    const ShardedParameter& only = flat_.parameters().front();
    if (at::Tensor own = held_.become_buffer(flat_.dtypes().reduce, only.sizes, only.strides, pool); own.defined()) {
      return own;
    }
  }
  return pool.acquire(flat_.layout().padded_numel(), flat_.dtypes().reduce,
                      stays ? Residence::kStaying : Residence::kPassing, this);
}

bool FlatGradient::may_adopt() const {
  return flat_.layout().num_parameters() == 1 && flat_.layout().padding() == 0 &&
         flat_.dtypes().reduce == flat_.dtypes().compute;
}

// Writes all that the round has captured to its buffer.
void FlatGradient::fill_buffer(BufferPool& pool) {
  take_buffer(pool);
  held_.give_up(
      [this](int64_t parameter, const at::Tensor& gradient) {
        take_turn();
        write_to_buffer(parameter, gradient, /*add=*/false);
      },
      pool);
  take_turn();
}

void FlatGradient::write_to_buffer(int64_t parameter, const at::Tensor& gradient, bool add) {
  at::NoGradGuard no_grad;
  at::Tensor place = flat_.view_in(buffer_, parameter);
  if (add) {
    place.add_(gradient);
  } else {
    place.copy_(gradient);
  }
}

void FlatGradient::end_round() {
  buffer_.reset();
  turns_.forget();
  captured_.clear();
  seen_.clear();
  carries_ = false;
}

void FlatGradient::capture(int64_t parameter, const at::Tensor& gradient, BufferPool& pool) {
  const bool shared = gradient.use_count() > 1 && !gradient.is_sparse();
  at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!lost_, "fsdp: ", where_(),
              ": a backward threw while gradients of several passes were being accumulated; ",
              "the gradient that earlier passes had accumulated for parameter '", flat_.parameters()[parameter].fqn,
              "' was lost. Call ShardedModule::zero_grad (or reset) and begin the step again");
  take_turn();
  if (!capturing()) {
    begin_round(pool);
  }
  // A gradient may itself be a view of a sharded parameter. The dispatcher must then see the parameter's unit.
  std::optional<seams::CleanDispatchGuard> clean;
  if (!seams::has_sharded_key(dense)) {
    clean.emplace();
  }
  any_captured_ = true;
  seen_.set(parameter);
  const bool is_first = captured_.set(parameter);
  if (is_first && !buffer_.defined()) {
    held_.hold(parameter, dense, shared, pool);
    return;
  }
  fill_buffer(pool);
  write_to_buffer(parameter, dense, /*add=*/!is_first);
}

void FlatGradient::suspend(BufferPool& pool) {
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(mutex_);
  fill_buffer(pool);
  state_.transition(GradientState::kAccumulating, where_);
  seen_.clear();
  carries_ = true;
}

void FlatGradient::resume(BufferPool& pool) {
  std::lock_guard lock(mutex_);
  take_turn();
  begin_round(pool);
}

void FlatGradient::discard(BufferPool& pool) {
  std::lock_guard lock(mutex_);
  any_captured_ = false;
  if (capturing()) {
    state_.transition(GradientState::kNone, where_);
    take_turn();
    lost_ |= carries_ || unreplicated_.defined();
    drop_captured(pool);
    end_round();
  }
}

void FlatGradient::drop_captured(BufferPool& pool) {
  held_.give_up([](int64_t, const at::Tensor&) {}, pool);
  give_back(buffer_, pool);
}

void FlatGradient::forget(BufferPool& pool) {
  std::lock_guard lock(mutex_);
  if (accumulating()) {
    state_.transition(GradientState::kNone, where_);
    take_turn();
    give_back(buffer_, pool);
    end_round();
  }
  give_back(unreplicated_, pool);
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
  fill_buffer(pool);
  // Replicas are reduced on one stream, whether in one stage or in two.
  const c10::Stream& stream = call.groups.shard ? call.streams.reduce : call.streams.all_reduce;
  CurrentStreamGuard on_stream(stream);
  take_turn();
  fill_gaps();
  state_.transition(GradientState::kReducing, where_);
  auto reduction = std::make_unique<Reduction>(stream);
  reduction->buffer = buffer_;
  reduction->captured = captured_;
  reduction->carries = carries_;
  reduction->shard = call.groups.shard.get();
  reduction->replicate = call.groups.replicate;
  reduction->sees_norm = call.sees_norm;
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
// The sum over W ranks is divided by the divisor D, which is W by default. A communicator does both. On CPUs it adds
// bf16 and fp16 in fp32. NCCL adds them in their own dtype, so it multiplies by a power of two before the addition and
// by the rest afterwards (split_scale). Therefore no sum overflows, and nothing is divided here before it is sent. With
// two stages, the result of the first one, in reduce_dtype, is the mean over the shard group's F ranks. It is of the
// size of a rank's own gradient, and overflows or underflows no earlier than that. The second stage multiplies by F /
// D.
void FlatGradient::issue_reduce_scatter(Reduction& reduction, const ReduceCall& call, BufferPool& pool) {
  Communicator& group = *call.groups.reduce;
  bool alone = !call.groups.replicate;
  int64_t numel = flat_.layout().shard_numel();
  at::Tensor target;
  if (alone) {
    target = reduction.output = make_output(pool, in_flight_);
  } else if (call.all_reduce) {
    target = reduction.partial = pool.acquire(numel, flat_.dtypes().reduce, Residence::kAside);
    reduction.second_stage_ahead = true;
    reduction.second_scale = group.size() / call.divisor;
  } else {
    target = reduction.output = pool.acquire(numel, flat_.dtypes().shard, Residence::kAside);
    reduction.leaves_out_replicas = true;
  }
  double scale = alone ? 1.0 / call.divisor : 1.0 / group.size();
  reduction.work =
      group.reduce_scatter(target, reduction.buffer, alone ? options_of(reduction, scale) : ReduceOptions{scale},
                           call.id, &reduction.captured.words());
}

void FlatGradient::issue_all_reduce(Reduction& reduction, const ReduceCall& call, BufferPool& pool) {
  bool in_place = leaves_.is_memory(reduction.buffer);
  reduction.output = in_place ? reduction.buffer : make_output(pool, in_flight_);
  reduction.work =
      call.groups.replicate->all_reduce(reduction.output, reduction.buffer, options_of(reduction, 1.0 / call.divisor),
                                        call.id, &reduction.captured.words());
}

bool FlatGradient::issue_second_stage(Reduction& reduction, const CollectiveId& id, const c10::Stream& stream,
                                      BufferPool& pool) {
  if (!std::exchange(reduction.second_stage_ahead, false)) {
    return false;
  }
  CurrentStreamGuard on_stream(stream);
  order_streams(reduction.stream, stream);  // also orders the unreplicated gradients of earlier passes
  reduction.stream = stream;
  std::unique_ptr<Work> first = std::move(reduction.work);
  first->wait();
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(mutex_);
  give_back(reduction.buffer, pool);
  if (unreplicated_.defined()) {
    reduction.partial.add_(unreplicated_);
    reduction.captured.merge(unreplicated_captured_);
    reduction.carries = true;
    give_back(unreplicated_, pool);
    unreplicated_captured_.clear();
  }
  reduction.output = make_output(pool, in_flight_ - 1);
  reduction.work =
      reduction.replicate->all_reduce(reduction.output, reduction.partial,
                                      options_of(reduction, reduction.second_scale), id, &reduction.captured.words());
  return true;
}

void FlatGradient::run_hook(Reduction& reduction, const ReduceCall& call, BufferPool& pool) {
  TORCH_CHECK(call.all_reduce || !call.groups.replicate, "fsdp: ", where_(),
              ": requires_all_reduce = false cannot be combined with a communication hook, which does the whole "
              "reduction itself");
  bool in_place = leaves_.is_memory(reduction.buffer);
  reduction.output = in_place ? pool.acquire(flat_.layout().shard_numel(), flat_.dtypes().gradient, Residence::kAside)
                              : make_output(pool, in_flight_);
  merge_over(call.groups.reduce.get(), reduction.captured, call.id);
  merge_over(call.groups.replicate.get(), reduction.captured, call.id);
  reduction.work = make_done_work();
  if (reduction.captured.count() == 0) {
    return;  // no rank has captured anything
  }
  call.communication_hook({call.id.name, reduction.buffer, reduction.output, call.groups.reduce, call.groups.replicate,
                           1.0 / call.divisor});
}

// Returns the options of the stage that writes the output.
ReduceOptions FlatGradient::options_of(Reduction& reduction, double scale) {
  return {.scale = scale, .summary = reduction.sees_norm ? &reduction.summary : nullptr};
}

// Returns the memory of the leaves' gradients if no gradient is there or on its way there, otherwise memory of the
// pool.
at::Tensor FlatGradient::make_output(BufferPool& pool, int64_t others_in_flight) {
  return others_in_flight == 0 && !leaves_.any() && !flat_.memory().apart()
             ? leaves_.fresh_memory()
             : pool.acquire(flat_.layout().shard_numel(), flat_.dtypes().gradient, Residence::kAside);
}

void FlatGradient::finish(Reduction& reduction, const std::function<void(const at::Tensor&)>& hook, BufferPool& pool) {
  CurrentStreamGuard on_stream(reduction.stream);
  reduction.work->wait();
  const bool any = reduction.captured.count() > 0;  // on any rank
  if (any && hook && !reduction.leaves_out_replicas) {
    hook(reduction.output);
  }
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(mutex_);
  if (!reduction.buffer.is_same(reduction.output)) {
    give_back(reduction.buffer, pool);
  }
  give_back(reduction.partial, pool);
  if (any && reduction.leaves_out_replicas) {
    keep_unreplicated(reduction, pool);
    end_reduction(GradientState::kAccumulating);
    return;
  }
  if (!any) {
    give_back(reduction.output, pool);
    end_reduction(unreplicated_.defined() ? GradientState::kAccumulating : GradientState::kReduced);
    return;
  }
  const bool all_there_is = !leaves_.any() && !hook;
  leaves_.add(reduction.output, reduction.captured);
  if (all_there_is) {
    leaves_.note(reduction.summary);
  }
  give_back(reduction.output, pool);
  end_reduction(GradientState::kReduced);
}

void FlatGradient::keep_unreplicated(Reduction& reduction, BufferPool& pool) {
  if (unreplicated_.defined()) {
    unreplicated_.add_(reduction.output);
    give_back(reduction.output, pool);
  } else {
    unreplicated_ = std::move(reduction.output);
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
  CurrentStreamGuard on_stream(reduction.stream);
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

void FlatGradient::trim() {
  std::lock_guard lock(mutex_);
  if (in_flight_ == 0 && !buffer_.defined() && !leaves_.any()) {
    leaves_.drop_memory();
  }
}

void FlatGradient::set_leaf_gradients(const at::Tensor& like_shard, const ParameterMask& defined) {
  std::lock_guard lock(mutex_);
  leaves_.assign(like_shard, defined);
}

void FlatGradient::clear_leaf(int64_t parameter) {
  if (accumulating()) {
    zero_accumulated(parameter);
    captured_.clear(parameter);
    unreplicated_captured_.clear(parameter);
  }
  leaves_.clear(parameter);
}

void FlatGradient::zero_leaf(int64_t parameter) {
  if (accumulating()) {
    zero_accumulated(parameter);
  }
  leaves_.zero(parameter);
}

void FlatGradient::zero_accumulated(int64_t parameter) {
  seams::CleanDispatchGuard clean;
  if (buffer_.defined()) {
    flat_.view_in(buffer_, parameter).zero_();
  }
  if (unreplicated_.defined()) {
    flat_.slice_of(unreplicated_, parameter).zero_();
  }
}

}  // namespace fsdp
