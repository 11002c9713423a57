#include "engine/held_gradients.h"

#include <utility>

#include "base/device_stream.h"

namespace fsdp::engine {
namespace {

int64_t memory_nbytes(const at::Tensor& gradient) { return static_cast<int64_t>(gradient.storage().nbytes()); }

// Whether other code may write to the gradient's memory. The gradient of a transposed weight is a view whose base has
// no other holder.
bool is_reachable(const at::Tensor& gradient) {
  const bool has_own_base = gradient.is_view() && gradient._base().use_count() == 1;
  return gradient.storage().use_count() > (has_own_base ? 2 : 1);
}

// Whether the gradient keeps more memory alive than its own elements need.
bool is_part(const at::Tensor& gradient) { return memory_nbytes(gradient) > static_cast<int64_t>(gradient.nbytes()); }

}  // namespace

void HeldGradients::hold(int64_t parameter, const at::Tensor& gradient, bool shared, BufferPool& pool) {
  const bool as_it_is = !shared && !is_reachable(gradient) && !is_part(gradient);
  at::Tensor own = as_it_is ? gradient : gradient.clone(at::MemoryFormat::Contiguous);
  pool.note_held(memory_nbytes(own));
  held_.push_back({parameter, std::move(own), base::current_stream(gradient.device())});
}

void HeldGradients::release_after(const std::function<void(int64_t, const at::Tensor&)>& use, BufferPool& pool) {
  for (Held& held : std::exchange(held_, {})) {
    base::CurrentStreamGuard as_it_came(held.stream);
    use(held.parameter, held.gradient);
    pool.note_held(-memory_nbytes(held.gradient));
    held.gradient.reset();
  }
}

at::Tensor HeldGradients::become_buffer(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                                        BufferPool& pool) {
  if (held_.size() != 1) return {};
  const auto& [parameter, gradient, stream] = held_.front();
  if (gradient.scalar_type() != dtype || gradient.sizes() != sizes || gradient.strides() != strides ||
      memory_nbytes(gradient) != static_cast<int64_t>(gradient.nbytes())) {
    return {};
  }
  pool.note_held(-memory_nbytes(gradient));
  at::Tensor buffer = pool.adopt(gradient.as_strided({gradient.numel()}, {1}), stream);
  held_.clear();
  return buffer;
}

}  // namespace fsdp::engine
