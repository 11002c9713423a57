// The gradients of one FlatParameter: captured into a flat buffer, reduced over the ranks, added to the shards'.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/transitions.h"
#include "engine/buffer_pool.h"
#include "engine/unit_state.h"
#include "flat/flat_parameter.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Which of a FlatParameter's parameters; a bit each.
class ParameterMask {
 public:
  explicit ParameterMask(int64_t size) : words_((size + 63) / 64) {}
  bool test(int64_t i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  // Returns whether the bit was clear.
  bool set(int64_t i);
  int64_t count() const;
  std::vector<uint64_t>& words() { return words_; }

 private:
  std::vector<uint64_t> words_;
};

// A gradient buffer on its way over the ranks.
struct Reduction {
  at::Tensor buffer;       // unsharded, reduce dtype
  at::Tensor output;       // laid out like the shard, in its dtype
  ParameterMask captured;  // over all ranks, once the work was waited for
  std::unique_ptr<Work> work;
};

// Threads: capture(), issue() and discard() under the unit's lock, finish() and drop() under the engine's reduction
// lock; a lock of its own keeps the two sides apart.
class FlatGradient {
 public:
  FlatGradient(FlatParameter& flat, bool use_orig_params, std::function<std::string()> where);

  GradientState state() const { return state_.get(); }
  bool capturing() const { return state_.is(GradientState::kCapturing); }
  // Whether every parameter has been captured in this round. Only a prediction that no more will come (rule R5).
  bool complete() const { return capturing() && captured_->count() == flat_.layout().num_parameters(); }

  // Writes a gradient into the buffer, or adds it when its parameter was captured before in this round.
  void capture(int64_t parameter, const at::Tensor& gradient, BufferPool& pool);
  // Hands the captured round to the communicator.
  std::unique_ptr<Reduction> issue(Communicator& communicator, BufferPool& pool, const CollectiveId& id);
  // Waits and adds to the leaves' gradients.
  void finish(Reduction& reduction, BufferPool& pool);
  // Drops a round that was captured only in part.
  void discard(BufferPool& pool);
  // Waits, and drops what comes.
  void drop(Reduction& reduction, BufferPool& pool);

  // Clears what the optimizer would see of one parameter's gradient.
  void clear_leaf(int64_t parameter);

 private:
  bool replicated() const { return flat_.position().factor == 1; }
  void begin_round(BufferPool& pool);
  void end_reduction();
  // Whether gradients can be captured and reduced where the leaves' gradients live.
  bool captures_in_place() const;
  void give_back(const at::Tensor& buffer, BufferPool& pool);
  void fill_gaps();
  bool leaves_hold_gradients() const;
  const at::Tensor& shard_gradient();
  const at::Tensor& unshared_shard_gradient();
  void add_to_original_leaves(const Reduction& reduction);
  void add_to_flat_leaf(const Reduction& reduction);
  void add_to_leaf(const at::Tensor& leaf, const at::Tensor& gradient, const at::Tensor& place);

  std::mutex mutex_;
  FlatParameter& flat_;
  bool use_orig_params_;
  std::function<std::string()> where_;
  StateMachine<GradientState> state_;
  at::Tensor buffer_;
  std::unique_ptr<ParameterMask> captured_;
  at::Tensor shard_gradient_;  // what the leaves' gradients are views of
  int64_t in_flight_ = 0;
};

}  // namespace fsdp
