// Gradients of one FlatParameter that wait, as autograd made them, for the buffer in which they are reduced.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/buffer_pool.h"

namespace fsdp::engine {

// [Note: gradients wait as they came]
// A buffer for all gradients of a unit, if taken at the first of them, would be held together with all activations of
// the unit's module. Therefore gradients are kept as autograd made them until the reduction is issued. They arrive
// while activations are freed: when the buffer is taken, the activations have been freed, and so has the buffer of the
// previous unit. Each gradient is copied, and then freed, on the stream that it came on, because its memory belongs to
// that stream. A gradient that other code can reach is copied at once, as autograd does when it accumulates. The
// gradient of a large parameter that is alone in its unit, such as an embedding or a head, is not copied at all: if it
// has the layout of the buffer, it becomes the buffer.
//
// Threads: guarded by the caller's lock.
class HeldGradients {
 public:
  // Stores a gradient. `shared`: other code may hold the gradient or its memory.
  void hold(int64_t parameter, const at::Tensor& gradient, bool shared, BufferPool& pool);
  // If exactly one gradient is held, and it has this dtype and this layout in memory, turns it into a 1-D buffer of the
  // pool and returns it. Otherwise returns an undefined tensor and changes nothing.
  at::Tensor become_buffer(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, BufferPool& pool);
  // Passes each gradient to `use` on the stream it was produced on, then releases it on that stream.
  void release_after(const std::function<void(int64_t parameter, const at::Tensor& gradient)>& use, BufferPool& pool);

 private:
  struct Held {
    int64_t parameter;
    at::Tensor gradient;
    c10::Stream stream;
  };
  std::vector<Held> held_;
};

}  // namespace fsdp::engine
