// What the optimizer sees of one FlatParameter's gradients: those of its leaves, views of one tensor laid out like the
// shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <utility>
#include <vector>

#include "base/device_stream.h"
#include "engine/buffer_pool.h"
#include "engine/parameter_mask.h"
#include "flat/flat_parameter.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Threads: the caller's lock.
class LeafGradients {
 public:
  // Their memory comes from the stream that is current now, and goes back to it: that of the user's operators; or from
  // `source`, if there is one.
  LeafGradients(FlatParameter& flat, bool use_orig_params, BufferPool::Source source)
      : flat_(flat),
        use_orig_params_(use_orig_params),
        source_(std::move(source)),
        home_(current_stream(flat.memory().shard_device())),
        in_flat_leaf_(flat.layout().num_parameters()) {}

  // The original leaves, or the flat one.
  std::vector<at::Tensor> leaves() const;
  // Whether a leaf has a gradient.
  bool any() const;
  // Adds `reduced`, laid out like the shard, to the leaves of the parameters in `captured` (to the flat leaf: all of
  // it). It may be memory() itself where no leaf has a gradient. From another device to the host it is copied on the
  // current stream; the host must wait for that before it reads.
  void add(const at::Tensor& reduced, const ParameterMask& captured);
  // Takes one parameter's gradient away: without original leaves it becomes zero, and the flat leaf's goes with the
  // last one.
  void clear(int64_t parameter);
  // Makes one parameter's gradient zero, if there is one.
  void zero(int64_t parameter);

  // What the reduction that has written all of the leaves' gradients has seen of them.
  void note(const ReductionSummary& summary);
  // The same as long as no gradient was written, added, taken away or put in another's place since; not known then.
  // (Writes through .data() are noticed, those through data_ptr() are not, as in autograd.)
  ReductionSummary summary() const;

  // All as one tensor, zero where there is none; `defined` gets the parameters that have one here.
  at::Tensor collect(ParameterMask& defined) const;
  // The reverse: the leaves of a parameter in `defined` get their part, the others get none.
  void assign(const at::Tensor& like_shard, const ParameterMask& defined);

  // The memory that a new gradient is to be written to. Where somebody has kept a gradient that was cleared since, the
  // old memory is theirs.
  const at::Tensor& fresh_memory();
  // Whether `tensor` lies in the leaves' memory.
  bool is_memory(const at::Tensor& tensor) const { return memory_.defined() && tensor.is_alias_of(memory_); }
  // Gives the memory back; who reads it on the current stream is waited for.
  void drop_memory();
  // Threads: safe.
  int64_t memory_nbytes() const { return memory_nbytes_; }

 private:
  // A leaf's gradient; null: none.
  struct Seen {
    const void* address = nullptr;
    uint64_t version = 0;
    bool operator==(const Seen&) const = default;
  };
  static Seen seen(const at::Tensor& leaf);
  const at::Tensor& memory();
  at::Tensor make_memory() const;
  void forget_memory();
  at::Tensor on_device_of_shards(const at::Tensor& reduced);
  void add_to_original_leaves(const at::Tensor& reduced, const ParameterMask& captured);
  void add_to_leaf(const at::Tensor& leaf, const at::Tensor& gradient, const at::Tensor& place);

  FlatParameter& flat_;
  bool use_orig_params_;
  BufferPool::Source source_;
  // [Note: where gradients live]
  // Reductions write gradients on their own streams, but the user drops them without telling us (zero_grad, a kept
  // tensor that ends): memory that had come from a reduction's stream would be free there at once, while what the user
  // enqueued before still reads it. It therefore comes from, and goes back to, the stream on which users read.
  c10::Stream home_;
  at::Tensor memory_;           // like the shard, gradient dtype
  ParameterMask in_flat_leaf_;  // parameters whose gradients the flat leaf's holds
  ReductionSummary summary_;
  std::vector<Seen> seen_;  // by leaf, when it was noted
  std::atomic<int64_t> memory_nbytes_{0};
};

}  // namespace fsdp
