#include "flat/shard_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <utility>

#include "base/allocation_scope.h"
#include "base/allocation_tag.h"

namespace fsdp::flat {
namespace {

at::Tensor in_files(base::MappedFiles& files, int64_t numel, at::ScalarType dtype) {
  auto memory = std::make_shared<c10::DataPtr>(files.allocate(numel * c10::elementSize(dtype)));
  return at::from_blob(memory->get(), {numel}, [memory](void*) mutable { memory.reset(); }, at::TensorOptions(dtype));
}

}  // namespace

ShardMemory ShardMemory::on_host(c10::Device compute, std::shared_ptr<base::MappedFiles> files) {
  ShardMemory memory(compute);
  memory.shards_ = c10::Device(c10::kCPU);
  memory.files_ = std::move(files);
  return memory;
}

at::Tensor ShardMemory::zeros(int64_t numel, at::ScalarType dtype) const {
  base::AllocationTag tag(base::AllocationPurpose::kShards);
  return (files_ && numel > 0 ? in_files(*files_, numel, dtype) : resident(numel, dtype)).zero_();
}

at::Tensor ShardMemory::for_gradients(int64_t numel, at::ScalarType dtype) const {
  base::AllocationTag tag(base::AllocationPurpose::kGradientShards);
  return resident(numel, dtype);
}

at::Tensor ShardMemory::resident(int64_t numel, at::ScalarType dtype) const {
  const auto options = at::TensorOptions(dtype).device(shards_);
  return at::empty({numel}, apart() && numel > 0 ? options.pinned_memory(true) : options);
}

void ShardMemory::page_out(const at::Tensor& shard) const {
  if (files_) files_->page_out(shard.const_data_ptr(), shard.nbytes());
}

void ShardMemory::with_offloaded_memory(const std::function<void()>& body) const {
  if (!files_) return body();
  {
    base::AllocationScope scope(files_);
    body();
  }
  files_->trim();
  files_->page_out();
}

std::string ShardMemory::where() const { return files_ ? " (files)" : apart() ? " (host)" : ""; }

}  // namespace fsdp::flat
