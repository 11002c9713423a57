#include "engine/captured_gradients.h"

#include "flat/rank_order.h"
#include "schedule/block_places.h"

namespace fsdp::engine {

CapturedGradients::CapturedGradients(const flat::FlatParameter& flat, LeafGradients& leaves)
    : flat_(flat), leaves_(leaves), captured_(flat.layout().num_parameters()), seen_(flat.layout().num_parameters()) {}

bool CapturedGradients::may_use_leaves() const {
  return flat_.position().factor == 1 && flat_.dtypes().reduce == flat_.dtypes().gradient && !flat_.memory().apart();
}

bool CapturedGradients::may_adopt() const {
  return flat_.layout().num_parameters() == 1 && flat_.layout().padding() == 0 &&
         flat_.dtypes().reduce == flat_.dtypes().compute;
}

int64_t CapturedGradients::buffer_nbytes() const {
  const int64_t numel = flat_.layout().padded_numel();
  return may_use_leaves()
             ? 0
             : schedule::BlockPlaces::rounded(numel * static_cast<int64_t>(c10::elementSize(flat_.dtypes().reduce)));
}

bool CapturedGradients::complete() const { return seen_.count() >= flat_.num_trained(); }

void CapturedGradients::begin(const Memory& memory) {
  if (memory.in_leaves || memory.pool.keeps_memory()) take_buffer(memory);
}

// A continued round has its buffer already, unless only the all-reduce over replicas is outstanding.
void CapturedGradients::take_buffer(const Memory& memory) {
  if (!buffer_.defined()) buffer_ = make_buffer(memory);
}

at::Tensor CapturedGradients::make_buffer(const Memory& memory) {
  if (memory.in_leaves) return leaves_.fresh_memory();
  if (may_adopt() && memory.pool.may_adopt()) {
    const flat::ShardedParameter& only = flat_.parameters().front();
    if (at::Tensor own = held_.become_buffer(flat_.dtypes().reduce, only.sizes, only.strides, memory.pool);
        own.defined()) {
      return own;
    }
  }
  return memory.pool.acquire(flat_.layout().padded_numel(), flat_.dtypes().reduce,
                             stays_ ? Residence::kStaying : Residence::kTransient, this);
}

void CapturedGradients::fill_buffer(const Memory& memory) {
  take_buffer(memory);
  held_.release_after(
      [this](int64_t parameter, const at::Tensor& gradient) {
        take_turn();
        write_to_buffer(parameter, gradient, /*add=*/false);
      },
      memory.pool);
  take_turn();
}

void CapturedGradients::write_to_buffer(int64_t parameter, const at::Tensor& gradient, bool add) {
  at::NoGradGuard no_grad;
  write_in_rank_order(flat_, buffer_, parameter, gradient, add);
}

void CapturedGradients::capture(int64_t parameter, const at::Tensor& gradient, bool shared, const Memory& memory) {
  take_turn();
  seen_.set(parameter);
  const bool is_first = captured_.set(parameter);
  if (is_first && !buffer_.defined()) {
    held_.hold(parameter, gradient, shared, memory.pool);
    return;
  }
  fill_buffer(memory);
  write_to_buffer(parameter, gradient, /*add=*/!is_first);
}

void CapturedGradients::suspend(const Memory& memory) {
  fill_buffer(memory);
  seen_.clear();
  carries_ = true;
}

CapturedGradients::Round CapturedGradients::take() {
  take_turn();
  fill_gaps();
  Round round{buffer_, captured_, carries_};
  end();
  return round;
}

// Parameters that took no part in this round contribute zero, and so does the padding.
void CapturedGradients::fill_gaps() {
  for (int64_t i = 0; i < flat_.layout().num_parameters(); ++i) {
    if (!captured_.test(i)) zero_in_rank_order(flat_, buffer_, i);
  }
  zero_padding(flat_, buffer_);
}

void CapturedGradients::discard(BufferPool& pool) {
  take_turn();
  held_.release_after([](int64_t, const at::Tensor&) {}, pool);
  leaves_.release(buffer_, pool);
  end();
}

void CapturedGradients::end() {
  buffer_.reset();
  turns_.clear();
  captured_.clear();
  seen_.clear();
  carries_ = false;
}

void CapturedGradients::clear(int64_t parameter) {
  zero(parameter);
  captured_.clear(parameter);
}

void CapturedGradients::zero(int64_t parameter) {
  if (buffer_.defined()) zero_in_rank_order(flat_, buffer_, parameter);
}

}  // namespace fsdp::engine
