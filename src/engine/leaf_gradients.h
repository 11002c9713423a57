// The gradients of one FlatParameter's leaves, which the optimizer sees. They are views of one tensor laid out like the
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

namespace fsdp::engine {

// Threads: guarded by the caller's lock.
class LeafGradients {
 public:
  // The memory of the gradients is allocated and freed on the stream that is current now, the stream of the user's
  // operators. If `source` is set, it provides the memory.
  LeafGradients(flat::FlatParameter& flat, bool use_orig_params, BufferPool::Source source)
      : flat_(flat),
        use_orig_params_(use_orig_params),
        source_(std::move(source)),
        home_(base::current_stream(flat.memory().shard_device())),
        in_flat_leaf_(flat.layout().num_parameters()) {}

  // Returns the original leaves, or the flat leaf if original parameters are not used.
  std::vector<at::Tensor> leaves() const;
  // Whether any leaf has a gradient.
  bool any() const;
  // Adds `reduced`, laid out like the shard, to the gradients of the leaves of the parameters in `captured` (all of it
  // to the gradient of the flat leaf). `reduced` may be memory() itself if no leaf has a gradient. If `reduced` is on
  // another device and the shards are on the host, it is copied on the current stream, and the host must wait for the
  // copy before it reads the gradients.
  void add(const at::Tensor& reduced, const ParameterMask& captured);
  // Removes the gradient of one parameter. Without original leaves its part becomes zero, and the gradient of the flat
  // leaf is removed together with the last parameter's.
  void clear(int64_t parameter);
  // Sets the gradient of one parameter to zero, if it has one.
  void zero(int64_t parameter);

  // Stores the summary of the reduction that has written all of the leaves' gradients.
  void note(const ReductionSummary& summary);
  // Returns the stored summary, or an unknown one if a gradient was written, added, removed or replaced since note().
  // (Writes through .data() are noticed, writes through data_ptr() are not, as in autograd.)
  ReductionSummary summary() const;

  // Returns all gradients as one tensor, zero where a parameter has none. Adds to `defined` the parameters that have a
  // gradient on this rank.
  at::Tensor collect(ParameterMask& defined) const;
  // The reverse of collect(): the leaves of the parameters in `defined` get their parts as gradients, the others get
  // none.
  void assign(const at::Tensor& like_shard, const ParameterMask& defined);

  // Returns the memory that a new gradient must be written to. If other code has kept a gradient that was cleared
  // since, that gradient keeps the old memory, and new memory is allocated.
  const at::Tensor& fresh_memory();
  // Whether `tensor` lies in the memory of the leaves' gradients.
  bool is_memory(const at::Tensor& tensor) const {
    return memory_.defined() && tensor.defined() && tensor.is_alias_of(memory_);
  }
  // Releases a buffer to the pool, unless it is memory(), and clears the tensor.
  void release(at::Tensor& buffer, BufferPool& pool) const;
  // Releases the memory, after the reads on the current stream.
  void release_memory();
  // Threads: safe.
  int64_t memory_nbytes() const { return memory_nbytes_; }

 private:
  // Identifies a leaf's gradient and its version. A null address means that the leaf has no gradient.
  struct Seen {
    const void* address = nullptr;
    uint64_t version = 0;
    bool operator==(const Seen&) const = default;
  };
  static Seen seen(const at::Tensor& leaf);
  const at::Tensor& memory();
  // Whether other code has kept a gradient that lies in the memory and is no longer a leaf's. A new gradient must not
  // be written over it.
  bool has_other_owners() const;
  at::Tensor make_memory() const;
  void clear_memory();
  at::Tensor on_device_of_shards(const at::Tensor& reduced);
  void add_to_original_leaves(const at::Tensor& reduced, const ParameterMask& captured);
  void add_to_leaf(const at::Tensor& leaf, const at::Tensor& gradient, const at::Tensor& place);

  flat::FlatParameter& flat_;
  bool use_orig_params_;
  BufferPool::Source source_;
  // [Note: where gradients live]
  // Reductions write gradients on their own streams, but the user drops gradients without telling the engine
  // (zero_grad, or a kept tensor that is destroyed). Memory allocated on a reduction's stream would then be free there
  // at once, while operators that the user enqueued before still read it. Therefore it is allocated and freed on the
  // stream on which users read it.
  c10::Stream home_;
  at::Tensor memory_;           // laid out like the shard, gradient dtype
  ParameterMask in_flat_leaf_;  // parameters whose gradients the flat leaf's gradient contains
  ReductionSummary summary_;
  std::vector<Seen> seen_;  // by leaf, at the time of note()
  std::atomic<int64_t> memory_nbytes_{0};
};

}  // namespace fsdp::engine
