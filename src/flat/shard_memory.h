// Where shards and their gradients lie: on the device that computes, in host memory, or in files.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "base/mapped_files.h"

namespace fsdp {

class ShardMemory {
 public:
  // On the device where parameters are gathered and used.
  explicit ShardMemory(c10::Device compute) : compute_(compute), shards_(compute) {}
  // In host memory, which is pinned where the compute device is not the CPU; in `files`, if there are any.
  static ShardMemory on_host(c10::Device compute, std::shared_ptr<MappedFiles> files);

  c10::Device compute_device() const { return compute_; }
  c10::Device shard_device() const { return shards_; }
  // Whether shards must be copied to the compute device.
  bool apart() const { return compute_ != shards_; }
  // Whether they lie in the memory of the CPU that computes.
  bool on_compute_host() const { return compute_.is_cpu() && shards_.is_cpu() && !files_; }

  // A shard: 1-D, zeros.
  at::Tensor zeros(int64_t numel, at::ScalarType dtype) const;
  // For gradients of shards, which files never hold: 1-D, not initialised.
  at::Tensor for_gradients(int64_t numel, at::ScalarType dtype) const;

  const std::shared_ptr<MappedFiles>& files() const { return files_; }
  // Takes a shard that lies in files out of resident memory. Does nothing to others.
  void page_out(const at::Tensor& shard) const;

  // For tables: "", " (host)", " (files)".
  std::string where() const;

 private:
  c10::Device compute_;
  c10::Device shards_;
  std::shared_ptr<MappedFiles> files_;
};

}  // namespace fsdp
