#include "engine/reduction.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <bit>
#include <numeric>
#include <optional>
#include <utility>

#include "torch_seams/clean_dispatch.h"
#include "torch_seams/dispatch_key.h"

namespace fsdp {

bool ParameterMask::set(int64_t i) {
  uint64_t bit = uint64_t{1} << (i % 64);
  bool was_clear = (words_[i / 64] & bit) == 0;
  words_[i / 64] |= bit;
  return was_clear;
}

int64_t ParameterMask::count() const {
  return std::accumulate(words_.begin(), words_.end(), int64_t{0},
                         [](int64_t sum, uint64_t word) { return sum + std::popcount(word); });
}

FlatGradient::FlatGradient(FlatParameter& flat, bool use_orig_params, std::function<std::string()> where)
    : flat_(flat),
      use_orig_params_(use_orig_params),
      where_(std::move(where)),
      state_(GradientState::kNone, gradient_transitions()) {}

bool FlatGradient::captures_in_place() const {
  return replicated() && flat_.dtypes().reduce == flat_.dtypes().shard && in_flight_ == 0 && !leaves_hold_gradients();
}

void FlatGradient::give_back(const at::Tensor& buffer, BufferPool& pool) {
  if (!shard_gradient_.defined() || !buffer.is_alias_of(shard_gradient_)) {
    pool.release(buffer);
  }
}

void FlatGradient::begin_round(BufferPool& pool) {
  state_.transition(GradientState::kCapturing, where_);
  buffer_ = captures_in_place() ? unshared_shard_gradient()
                                : pool.acquire(flat_.layout().padded_numel(), flat_.dtypes().reduce);
  captured_ = std::make_unique<ParameterMask>(flat_.layout().num_parameters());
}

void FlatGradient::capture(int64_t parameter, const at::Tensor& gradient, BufferPool& pool) {
  at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  std::lock_guard lock(mutex_);
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
  if (captured_->set(parameter)) {
    place.copy_(dense);
  } else {
    place.add_(dense);
  }
}

// Parameters that took no part in this backward contribute zero, and so does the padding.
void FlatGradient::fill_gaps() {
  const FlatLayout& layout = flat_.layout();
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    if (!captured_->test(i)) {
      buffer_.narrow(0, layout.offset(i), layout.numel(i)).zero_();
    }
  }
  if (layout.padding() > 0) {
    buffer_.narrow(0, layout.unpadded_numel(), layout.padding()).zero_();
  }
}

std::unique_ptr<Reduction> FlatGradient::issue(Communicator& communicator, BufferPool& pool, const CollectiveId& id) {
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(mutex_);
  fill_gaps();
  state_.transition(GradientState::kReducing, where_);
  bool in_place = shard_gradient_.defined() && buffer_.is_alias_of(shard_gradient_);
  bool direct = in_flight_ == 0 && !leaves_hold_gradients();
  at::Tensor output = in_place ? buffer_
                      : direct ? unshared_shard_gradient()
                               : pool.acquire(flat_.layout().shard_numel(), flat_.dtypes().shard);
  auto reduction = std::make_unique<Reduction>(Reduction{buffer_, output, std::move(*captured_), nullptr});
  ReduceOptions options{1.0 / communicator.size()};
  std::vector<uint64_t>* flags = &reduction->captured.words();
  reduction->work = replicated() ? communicator.all_reduce(output, buffer_, options, id, flags)
                                 : communicator.reduce_scatter(output, buffer_, options, id, flags);
  buffer_.reset();
  captured_.reset();
  ++in_flight_;
  return reduction;
}

void FlatGradient::finish(Reduction& reduction, BufferPool& pool) {
  reduction.work->wait();
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(mutex_);
  give_back(reduction.buffer, pool);
  if (use_orig_params_) {
    add_to_original_leaves(reduction);
  } else {
    add_to_flat_leaf(reduction);
  }
  give_back(reduction.output, pool);
  end_reduction();
}

void FlatGradient::end_reduction() {
  --in_flight_;
  if (state_.is(GradientState::kReducing) && in_flight_ == 0) {
    state_.transition(GradientState::kReduced, where_);
  }
}

void FlatGradient::drop(Reduction& reduction, BufferPool& pool) {
  std::lock_guard lock(mutex_);
  end_reduction();
  reduction.work->wait();
  give_back(reduction.buffer, pool);
  give_back(reduction.output, pool);
}

void FlatGradient::discard(BufferPool& pool) {
  std::lock_guard lock(mutex_);
  if (capturing()) {
    state_.transition(GradientState::kNone, where_);
    give_back(buffer_, pool);
    buffer_.reset();
    captured_.reset();
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
    shard_gradient_ = at::zeros_like(flat_.shard());
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

void FlatGradient::clear_leaf(int64_t parameter) {
  seams::CleanDispatchGuard clean;
  if (use_orig_params_) {
    flat_.original_leaves()[parameter].mutable_grad().reset();
  } else if (at::Tensor& gradient = flat_.flat_leaf().mutable_grad(); gradient.defined()) {
    flat_.slice_of(gradient, parameter).zero_();
  }
}

}  // namespace fsdp
