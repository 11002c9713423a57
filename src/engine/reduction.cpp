#include "engine/reduction.h"

#include <utility>

#include "comm/fake_communicator.h"
#include "torch_seams/clean_dispatch.h"

namespace fsdp::engine {

Reduction::Reduction(const flat::FlatParameter& flat, LeafGradients& leaves, CapturedGradients::Round round,
                     const ReduceCall& call, BufferPool& pool)
    : flat_(flat),
      leaves_(leaves),
      pool_(pool),
      stream_(call.first_stream()),
      over_shard_group_(call.groups.shard != nullptr),
      buffer_(std::move(round.buffer)),
      captured_(std::move(round.captured)),
      carries_(round.carries),
      sees_norm_(call.sees_norm),
      replicate_(call.groups.replicate) {}

// ---------------------------------------------------------------- memory

void Reduction::take_memory(const ReduceCall& call, bool alone) {
  const bool in_place = leaves_.is_memory(buffer_);
  if (call.communication_hook) {
    // A hook may read the buffer while it writes the output.
    output_ = in_place ? pool_.acquire(flat_.layout().shard_numel(), flat_.dtypes().gradient, Residence::kAside)
                       : take_output(alone);
  } else if (call.groups.shard) {
    take_memory_to_scatter(call, alone);
  } else {
    output_ = in_place ? buffer_ : take_output(alone);
  }
}

void Reduction::take_memory_to_scatter(const ReduceCall& call, bool alone) {
  const int64_t numel = flat_.layout().shard_numel();
  if (!call.groups.replicate) {
    output_ = take_output(alone);
  } else if (call.all_reduce) {
    partial_ = pool_.acquire(numel, flat_.dtypes().reduce, Residence::kAside);
    stage_ = Stage::kFirstOfTwo;
    second_scale_ = static_cast<double>(call.groups.reduce->size()) / call.divisor;
  } else {
    output_ = pool_.acquire(numel, flat_.dtypes().shard, Residence::kAside);
    stage_ = Stage::kLeftToLater;
  }
}

// Returns the memory of the leaves' gradients if no gradient is there or on its way there, otherwise memory of the
// pool.
at::Tensor Reduction::take_output(bool alone) {
  return alone && !leaves_.any() && !flat_.memory().apart()
             ? leaves_.fresh_memory()
             : pool_.acquire(flat_.layout().shard_numel(), flat_.dtypes().gradient, Residence::kAside);
}

void Reduction::release_inputs() {
  if (!buffer_.is_same(output_)) leaves_.release(buffer_, pool_);
  leaves_.release(partial_, pool_);
}

void Reduction::release_output() { leaves_.release(output_, pool_); }

// ---------------------------------------------------------------- collectives

void Reduction::issue(const ReduceCall& call) {
  if (call.communication_hook) {
    run_hook(call);
    return;
  }
  seams::CleanDispatchGuard clean;
  if (call.groups.shard) {
    issue_reduce_scatter(call);
  } else {
    issue_all_reduce(call);
  }
}

void Reduction::issue_reduce_scatter(const ReduceCall& call) {
  Communicator& group = *call.groups.reduce;
  const bool is_last = !call.groups.replicate;
  const ReduceOptions options = is_last ? options_of_last_stage(1.0 / call.divisor) : ReduceOptions{1.0 / group.size()};
  work_ = group.reduce_scatter(stage_ == Stage::kFirstOfTwo ? partial_ : output_, buffer_, options, call.id,
                               &captured_.words());
}

void Reduction::issue_all_reduce(const ReduceCall& call) {
  work_ = call.groups.replicate->all_reduce(output_, buffer_, options_of_last_stage(1.0 / call.divisor), call.id,
                                            &captured_.words());
}

void Reduction::run_hook(const ReduceCall& call) {
  merge_over(call.groups.reduce.get(), captured_, call.id);
  merge_over(call.groups.replicate.get(), captured_, call.id);
  work_ = comm::make_done_work();
  if (!any()) {
    return;  // no rank has captured anything
  }
  call.communication_hook(
      {call.id.name, buffer_, output_, call.groups.reduce, call.groups.replicate, 1.0 / call.divisor});
}

ReduceOptions Reduction::options_of_last_stage(double scale) {
  return {.scale = scale, .summary = sees_norm_ ? &summary_ : nullptr};
}

void Reduction::wait() {
  TORCH_CHECK(work_, "fsdp: a reduction of gradients has failed before, in its second stage");
  work_->wait();
}

// ---------------------------------------------------------------- the second stage

void Reduction::await_first_stage(const c10::Stream& stream) {
  stage_ = Stage::kSecond;
  base::order_streams(stream_, stream);  // also orders the unreplicated gradients of earlier passes
  stream_ = stream;
  const std::unique_ptr<Work> first = std::move(work_);
  first->wait();
}

void Reduction::begin_second_stage(UnreplicatedSum& unreplicated, bool alone) {
  leaves_.release(buffer_, pool_);
  carries_ |= unreplicated.move_into(partial_, captured_, pool_);
  output_ = take_output(alone);
}

void Reduction::issue_second_stage(const CollectiveId& id) {
  seams::CleanDispatchGuard clean;
  work_ = replicate_->all_reduce(output_, partial_, options_of_last_stage(second_scale_), id, &captured_.words());
}

}  // namespace fsdp::engine
