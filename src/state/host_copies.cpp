#include "state/host_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <optional>
#include <utility>

#include "base/device_stream.h"

namespace fsdp {

namespace {

constexpr int64_t kAlignment = 64;

int64_t place_of(const at::Tensor& values) {
  return (static_cast<int64_t>(values.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor pinned_memory(int64_t nbytes) {
  return at::empty({nbytes}, at::TensorOptions(at::kByte).pinned_memory(true));
}

at::Tensor paged_memory(int64_t nbytes) {
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(nbytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "no memory for a copy of what is saved asynchronously: ", nbytes, " bytes");
  ::madvise(memory, static_cast<size_t>(nbytes), MADV_HUGEPAGE);  // a hint: fine where there are none
  const auto unmap = [nbytes](void* at) { ::munmap(at, static_cast<size_t>(nbytes)); };
  return at::from_blob(memory, {nbytes}, unmap, at::TensorOptions(at::kByte));
}

}  // namespace

void HostCopies::take(std::vector<Piece>& pieces) {
  const at::NoGradGuard no_grad;
  int64_t nbytes = 0;
  bool on_device = false;
  for (const Piece& piece : pieces) {
    nbytes += place_of(piece.values);
    on_device = on_device || has_streams(piece.values.device());
  }
  if (nbytes == 0) return;
  if (!memory_.defined() || memory_.numel() < nbytes || memory_.is_pinned() != on_device) {
    memory_ = at::Tensor();  // the old one goes first
    memory_ = on_device ? pinned_memory(nbytes) : paged_memory(nbytes);
  }
  std::optional<DeviceEvent> copied;
  int64_t offset = 0;
  for (Piece& piece : pieces) {
    const at::Tensor from = std::exchange(
        piece.values,
        memory_.narrow(0, offset, static_cast<int64_t>(piece.values.nbytes())).view(piece.values.scalar_type()));
    offset += place_of(from);
    const bool is_late = has_streams(from.device());
    piece.values.copy_(from, /*non_blocking=*/is_late);
    if (!is_late) continue;
    if (!copied) copied.emplace();
    copied->record_current(from.device());
  }
  if (copied) copied->synchronize();
}

}  // namespace fsdp
