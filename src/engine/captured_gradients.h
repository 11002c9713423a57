// The gradients that a rank has captured for one FlatParameter and that no reduction has taken yet.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>

#include "base/stream_order.h"
#include "engine/buffer_pool.h"
#include "engine/held_gradients.h"
#include "engine/leaf_gradients.h"
#include "engine/parameter_mask.h"
#include "flat/flat_parameter.h"

namespace fsdp::engine {

// A *round* collects the gradients of one or, without communication in between, of several backward passes. They are
// held as autograd made them until the round needs its buffer: [Note: gradients wait as they came].
//
// Threads: guarded by the caller's lock.
class CapturedGradients {
 public:
  // Where a round gets its buffer.
  struct Memory {
    BufferPool& pool;
    bool in_leaves = false;  // a buffer that is taken now is the memory of the leaves' gradients
  };
  CapturedGradients(const flat::FlatParameter& flat, LeafGradients& leaves);

  // Begins a round, or continues a suspended one.
  void begin(const Memory& memory);
  // Adds a gradient on the current stream, after captures on other streams. If the round has its buffer, or the
  // parameter was captured before in this round, writes the gradient to the buffer. `shared`: other code may hold the
  // gradient or its memory.
  void capture(int64_t parameter, const at::Tensor& gradient, bool shared, const Memory& memory);
  // Ends this backward's part of the round, and keeps the gradients for the next one.
  void suspend(const Memory& memory);
  // Writes all that was captured to the buffer, which is then used on the current stream.
  void fill_buffer(const Memory& memory);

  // A round that has ended. `buffer`: in rank order, in the reduce dtype, zero where nothing was captured.
  struct Round {
    at::Tensor buffer;
    ParameterMask captured;
    bool carries = false;  // whether it contains gradients of earlier backward passes
  };
  // Ends the round and hands it out, for use on the current stream. Call fill_buffer() first.
  Round take();
  // Ends the round and discards what was captured.
  void discard(BufferPool& pool);

  // Clears one parameter's gradient of a suspended round, or sets it to zero.
  void clear(int64_t parameter);
  void zero(int64_t parameter);

  // Whether this backward has captured every parameter that requires a gradient.
  bool complete() const;
  bool carries() const { return carries_; }
  bool has_buffer() const { return buffer_.defined(); }
  // If `on`, the buffer outlives the buffers of other units, as the root's does, whose gradients come first and last.
  // Threads: safe.
  void set_stays(bool on) { stays_ = on; }
  bool stays() const { return stays_; }
  // Whether gradients may ever be captured and reduced in the memory of the leaves' gradients.
  bool may_use_leaves() const;
  // Whether it has only one parameter, whose gradient may become the buffer.
  bool may_adopt() const;
  // Bytes of the buffer; 0 if that is the memory of the leaves' gradients.
  int64_t buffer_nbytes() const;

 private:
  // Must be called before the buffer is used or released on the current stream.
  void take_turn() { turns_.take(flat_.compute_device()); }
  void take_buffer(const Memory& memory);
  at::Tensor make_buffer(const Memory& memory);
  void write_to_buffer(int64_t parameter, const at::Tensor& gradient, bool add);
  void fill_gaps();
  void end();

  const flat::FlatParameter& flat_;
  LeafGradients& leaves_;
  std::atomic<bool> stays_{false};
  at::Tensor buffer_;        // once it is needed
  HeldGradients held_;       // captured, not yet in the buffer
  base::StreamTurns turns_;  // of captures and of later uses of the buffer
  ParameterMask captured_;   // in this round
  ParameterMask seen_;       // in this backward
  bool carries_ = false;
};

}  // namespace fsdp::engine
