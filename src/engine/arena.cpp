#include "engine/arena.h"

#include <ATen/ops/empty.h>

namespace fsdp::engine {

std::optional<at::Tensor> Arena::take(int64_t nbytes) {
  const std::optional<int64_t> begin = places_.take(nbytes);
  return begin ? std::optional(memory_.narrow(0, *begin, nbytes)) : std::nullopt;
}

bool Arena::release(const at::Tensor& block) {
  if (!memory_.defined() || !block.is_alias_of(memory_)) return false;
  const int64_t begin = block.storage_offset() * static_cast<int64_t>(block.element_size());
  TORCH_CHECK(places_.release(begin), "fsdp: a buffer was given back twice");
  return true;
}

void Arena::resize(int64_t nbytes) {
  TORCH_CHECK(empty(), "fsdp: an arena is in use and cannot be replaced");
  memory_.reset();
  places_ = schedule::BlockPlaces(nbytes);
  if (nbytes > 0) memory_ = at::empty({nbytes}, at::TensorOptions().dtype(at::kByte).device(device_));
}

}  // namespace fsdp::engine
