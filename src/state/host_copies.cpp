#include "state/host_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "base/device_stream.h"

namespace fsdp::state {

namespace {

constexpr int64_t kAlignment = 64;

int64_t place_of(const at::Tensor& values) {
  return (static_cast<int64_t>(values.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void HostCopies::take(std::vector<Piece>& pieces) {
  const at::NoGradGuard no_grad;
  int64_t nbytes = 0;
  bool on_device = false;
  for (const Piece& piece : pieces) {
    nbytes += place_of(piece.values);
    on_device = on_device || base::has_streams(piece.values.device());
  }
  if (nbytes == 0) return;
  if (!memory_.defined() || memory_.numel() < nbytes || memory_.is_pinned() != on_device) {
    memory_ = at::Tensor();  // frees the old memory first
    memory_ = at::empty({nbytes}, at::TensorOptions(at::kByte).pinned_memory(on_device));
  }
  std::optional<base::DeviceEvent> copied;
  int64_t offset = 0;
  for (Piece& piece : pieces) {
    const at::Tensor from = std::exchange(
        piece.values,
        memory_.narrow(0, offset, static_cast<int64_t>(piece.values.nbytes())).view(piece.values.scalar_type()));
    offset += place_of(from);
    const bool is_late = base::has_streams(from.device());
    piece.values.copy_(from, /*non_blocking=*/is_late);
    if (!is_late) continue;
    if (!copied) copied.emplace();
    copied->record_current(from.device());
  }
  if (copied) copied->synchronize();
}

}  // namespace fsdp::state
