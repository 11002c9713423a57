#include "engine/unreplicated_sum.h"

#include <utility>

namespace fsdp::engine {

void UnreplicatedSum::add(at::Tensor& reduced, const ParameterMask& captured, BufferPool& pool) {
  if (sum_.defined()) {
    sum_.add_(reduced);
    pool.release(reduced);
    reduced.reset();
  } else {
    sum_ = std::move(reduced);
  }
  captured_.merge(captured);
}

bool UnreplicatedSum::move_into(const at::Tensor& partial, ParameterMask& captured, BufferPool& pool) {
  if (!sum_.defined()) return false;
  partial.add_(sum_);
  captured.merge(captured_);
  release(pool);
  return true;
}

void UnreplicatedSum::release(BufferPool& pool) {
  if (sum_.defined()) {
    pool.release(sum_);
    sum_.reset();
  }
  captured_.clear();
}

void UnreplicatedSum::clear(int64_t parameter) {
  zero(parameter);
  captured_.clear(parameter);
}

void UnreplicatedSum::zero(int64_t parameter) {
  if (sum_.defined()) flat_.slice_of(sum_, parameter).zero_();
}

}  // namespace fsdp::engine
