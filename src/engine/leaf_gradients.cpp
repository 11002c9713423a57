#include "engine/leaf_gradients.h"

#include <algorithm>
#include <utility>

#include "base/stream_order.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/shard_version.h"

namespace fsdp::engine {

std::vector<at::Tensor> LeafGradients::leaves() const {
  return use_orig_params_ ? flat_.original_leaves() : std::vector<at::Tensor>{flat_.flat_leaf()};
}

bool LeafGradients::any() const {
  if (!use_orig_params_) return flat_.flat_leaf().grad().defined();
  for (const at::Tensor& leaf : flat_.original_leaves()) {
    if (leaf.numel() > 0 && leaf.grad().defined()) return true;
  }
  return false;
}

at::Tensor LeafGradients::make_memory() const {
  const int64_t numel = flat_.layout().shard_numel();
  const at::ScalarType dtype = flat_.dtypes().gradient;
  if (source_ && numel > 0) return source_(numel * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype);
  return flat_.memory().for_gradients(numel, dtype);
}

const at::Tensor& LeafGradients::memory() {
  if (!memory_.defined()) {
    const c10::Stream user = base::current_stream(home_.device());
    {
      base::CurrentStreamGuard at_home(home_);
      memory_ = make_memory();
    }
    base::order_streams(home_, user);
    memory_nbytes_ = static_cast<int64_t>(memory_.nbytes());
  }
  return memory_;
}

void LeafGradients::release(at::Tensor& buffer, BufferPool& pool) const {
  if (buffer.defined() && !is_memory(buffer)) pool.release(buffer);
  buffer.reset();
}

void LeafGradients::release_memory() {
  if (memory_.defined()) {
    base::order_streams(base::current_stream(home_.device()), home_);
    clear_memory();
  }
}

void LeafGradients::clear_memory() {
  seen_.clear();
  memory_.reset();
  memory_nbytes_ = 0;
}

bool LeafGradients::has_other_owners() const {
  if (!memory_.defined()) return false;
  size_t own = 1;  // memory_ itself
  for (const at::Tensor& leaf : leaves()) own += leaf.grad().defined() && is_memory(leaf.grad());
  return memory_.storage().use_count() > own;
}

const at::Tensor& LeafGradients::fresh_memory() {
  if (memory_.defined() && (memory_.use_count() > 1 || memory_.storage().use_count() > 1)) {
    clear_memory();
  }
  seen_.clear();
  return memory();
}

LeafGradients::Seen LeafGradients::seen(const at::Tensor& leaf) {
  const at::Tensor& gradient = leaf.grad();
  return gradient.defined() ? Seen{gradient.const_data_ptr(), seams::version_of(gradient)} : Seen{};
}

void LeafGradients::note(const ReductionSummary& summary) {
  summary_ = summary;
  seen_.clear();
  for (const at::Tensor& leaf : leaves()) seen_.push_back(seen(leaf));
}

ReductionSummary LeafGradients::summary() const {
  const std::vector<at::Tensor> all = leaves();
  const bool same = std::equal(all.begin(), all.end(), seen_.begin(), seen_.end(),
                               [](const at::Tensor& leaf, const Seen& then) { return seen(leaf) == then; });
  return same ? summary_ : ReductionSummary{};
}

void LeafGradients::add(const at::Tensor& reduced, const ParameterMask& captured) {
  seen_.clear();
  const at::Tensor here = on_device_of_shards(reduced);
  if (!is_memory(here) && !any()) fresh_memory();
  if (use_orig_params_) {
    add_to_original_leaves(here, captured);
  } else {
    if (!flat_.flat_leaf().grad().defined()) in_flat_leaf_.clear();
    in_flat_leaf_.merge(captured);
    add_to_leaf(flat_.flat_leaf(), here, memory());
  }
}

// Returns the gradient on the device of the shards. The host waits only if it must add.
at::Tensor LeafGradients::on_device_of_shards(const at::Tensor& reduced) {
  const c10::Device device = flat_.memory().shard_device();
  if (!reduced.defined() || reduced.device() == device) return reduced;
  return any() ? reduced.to(device) : fresh_memory().copy_(reduced, /*non_blocking=*/true);
}

// [Note: a shard that the optimizer passes over]
// If a rank holds no element of the captured parameters, but only padding or parameters without gradients, the
// optimizer would not visit its leaves, which are empty and have no gradient. The version of its shard would then stay
// the same while other ranks' versions change, and the ranks would disagree on whether a unit that is still gathered
// must be gathered again. Therefore the first captured leaf on such a rank gets a defined gradient, without elements.
//
// With the cut by rows, every captured leaf gets one: a DTensor's gradient exists on all ranks or on none, because
// functions of it communicate.
void LeafGradients::add_to_original_leaves(const at::Tensor& reduced, const ParameterMask& captured) {
  const flat::FlatLayout& layout = flat_.layout();
  const bool shares_memory = is_memory(reduced) || !has_other_owners();
  const bool rows = layout.cut() == ShardCut::kRows;
  const auto is_visited = [&](int64_t i) {  // a parameter without elements has a gradient without elements
    return captured.test(i) && (rows || flat_.original_leaves()[i].numel() > 0 || layout.numel(i) == 0);
  };
  bool visit_empty = true;
  for (int64_t i = 0; i < layout.num_parameters(); ++i) visit_empty &= !is_visited(i);
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    const at::Tensor& leaf = flat_.original_leaves()[i];
    if (is_visited(i) || (captured.test(i) && std::exchange(visit_empty, false))) {
      const at::Tensor place = flat_.slice_of(memory(), i);
      add_to_leaf(leaf, flat_.slice_of(reduced, i), shares_memory ? place : at::empty_like(place));
    }
  }
}

void LeafGradients::add_to_leaf(const at::Tensor& leaf, const at::Tensor& gradient, const at::Tensor& place) {
  at::Tensor& present = leaf.mutable_grad();
  if (present.defined()) {
    present.add_(gradient);
    return;
  }
  if (!gradient.is_set_to(place)) place.copy_(gradient);
  present = seams::make_versioned_leaf(place);
}

void LeafGradients::clear(int64_t parameter) {
  seen_.clear();
  seams::CleanDispatchGuard clean;
  if (use_orig_params_) {
    flat_.original_leaves()[parameter].mutable_grad().reset();
  } else if (at::Tensor& gradient = flat_.flat_leaf().mutable_grad(); gradient.defined()) {
    flat_.slice_of(gradient, parameter).zero_();
    in_flat_leaf_.clear(parameter);
    if (in_flat_leaf_.count() == 0) gradient.reset();
  }
}

void LeafGradients::zero(int64_t parameter) {
  seen_.clear();
  seams::CleanDispatchGuard clean;
  const at::Tensor& leaf = use_orig_params_ ? flat_.original_leaves()[parameter] : flat_.flat_leaf();
  if (at::Tensor& gradient = leaf.mutable_grad(); gradient.defined()) {
    (use_orig_params_ ? gradient : flat_.slice_of(gradient, parameter)).zero_();
  }
}

at::Tensor LeafGradients::collect(ParameterMask& defined) const {
  seams::CleanDispatchGuard clean;
  at::Tensor flat = flat_.memory().for_gradients(flat_.layout().shard_numel(), flat_.dtypes().gradient).zero_();
  for (int64_t i = 0; i < flat_.layout().num_parameters(); ++i) {
    const at::Tensor& whole = use_orig_params_ ? flat_.original_leaves()[i].grad() : flat_.flat_leaf().grad();
    if (whole.defined()) {
      defined.set(i);
      flat_.slice_of(flat, i).copy_(use_orig_params_ ? whole : flat_.slice_of(whole, i));
    }
  }
  return flat;
}

void LeafGradients::assign(const at::Tensor& like_shard, const ParameterMask& defined) {
  seams::CleanDispatchGuard clean;
  for (const at::Tensor& leaf : leaves()) leaf.mutable_grad().reset();
  if (use_orig_params_ || defined.count() > 0) {
    add(like_shard.defined() ? like_shard.to(flat_.memory().shard_device()) : like_shard, defined);
  }
}

}  // namespace fsdp::engine
