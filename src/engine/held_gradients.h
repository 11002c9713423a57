// Gradients of one FlatParameter that wait, as they came, for the buffer in which they are reduced.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/buffer_pool.h"

namespace fsdp {

// [Note: gradients wait as they came]
// A buffer for all gradients of a unit, taken at the first of them, would lie beside all activations of its module. So
// gradients are kept as autograd made them until the reduction is issued: they come as activations go, and when the
// buffer is taken the activations are gone, and so is the buffer of the unit before. Each gradient is copied, and
// given up, on the stream that it came on: its memory belongs to that stream. What somebody else can reach is copied
// at once, as autograd does when it accumulates. The gradient of a large parameter that is alone in its unit, an
// embedding's or a head's, is not copied at all: where it is laid out as the buffer would be, it becomes the buffer.
//
// Threads: the caller's lock.
class HeldGradients {
 public:
  // `shared`: others may hold it, or memory of it.
  void hold(int64_t parameter, const at::Tensor& gradient, bool shared, BufferPool& pool);
  // The only one, made a buffer of the pool's, 1-D, if it has this dtype and lies in memory like this. Else undefined,
  // and nothing has changed.
  at::Tensor become_buffer(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, BufferPool& pool);
  // Hands each one to `use`, with its stream current, and gives it up behind that.
  void give_up(const std::function<void(int64_t parameter, const at::Tensor& gradient)>& use, BufferPool& pool);

 private:
  struct Held {
    int64_t parameter;
    at::Tensor gradient;
    c10::Stream stream;
  };
  std::vector<Held> held_;
};

}  // namespace fsdp
