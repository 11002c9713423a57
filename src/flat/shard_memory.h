// The memory of shards and their gradients: on the compute device, in host memory, or in files.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "base/mapped_files.h"

namespace fsdp::flat {

class ShardMemory {
 public:
  // Places shards on the device where parameters are gathered and used.
  explicit ShardMemory(c10::Device compute) : compute_(compute), shards_(compute) {}
  // Places shards in host memory, which is pinned if the compute device is not the CPU, or in `files` if not null.
  static ShardMemory on_host(c10::Device compute, std::shared_ptr<base::MappedFiles> files);

  c10::Device compute_device() const { return compute_; }
  c10::Device shard_device() const { return shards_; }
  // Whether shards must be copied to the compute device.
  bool apart() const { return compute_ != shards_; }
  // Whether shards lie in the memory of the CPU that computes.
  bool on_compute_host() const { return compute_.is_cpu() && shards_.is_cpu() && !files_; }

  // Returns a shard: 1-D, filled with zeros.
  at::Tensor zeros(int64_t numel, at::ScalarType dtype) const;
  // Returns memory for gradients of shards, which is never in files: 1-D, not initialised.
  at::Tensor for_gradients(int64_t numel, at::ScalarType dtype) const;

  const std::shared_ptr<base::MappedFiles>& files() const { return files_; }
  // Removes a shard that lies in files from resident memory. Does nothing for other shards.
  void page_out(const at::Tensor& shard) const;

  // Runs `body` such that host memory that it allocates lies in files, if the shards lie in files.
  void with_offloaded_memory(const std::function<void()>& body) const;

  // Returns a suffix for tables: "", " (host)" or " (files)".
  std::string where() const;

 private:
  at::Tensor resident(int64_t numel, at::ScalarType dtype) const;  // not initialised

  c10::Device compute_;
  c10::Device shards_;
  std::shared_ptr<base::MappedFiles> files_;
};

}  // namespace fsdp::flat
