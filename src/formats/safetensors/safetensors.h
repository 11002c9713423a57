// Reads safetensors files: an 8-byte header length, a JSON header, and the tensors' bytes.
//
// A file is treated as if an attacker had written it: everything is checked before the first tensor is returned, and
// each error names the file, the tensor and the expected value. See safetensors_writer.h for writing.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/common/mapped_file.h"
#include "formats/common/tensor_info.h"

namespace fsdp::formats {

// Threads: const functions may be called from any number of threads.
class SafetensorsFile {
 public:
  // Maps the file and validates its header. Reads no tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_->path(); }
  // In the order of the data in the file.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  const TensorInfo& info(const std::string& name) const;

  // Returns a tensor on the CPU with the stored dtype and shape. It is a view of the mapped file and keeps the file
  // mapped: reading it loads pages, writing it is a segmentation fault. If the file's data are not aligned for the
  // dtype, and for BOOL, it is a copy.
  at::Tensor tensor(const std::string& name) const;

  // Copies elements [begin, end) of the tensor, flattened in row-major order, into `out`: 1-D, contiguous, end - begin
  // elements, any dtype and device; values are converted as by Tensor::copy_. Reads only the pages of these elements.
  void read_range(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const;

 private:
  size_t position(const std::string& name) const;
  at::Tensor view(size_t position, int64_t begin, int64_t end) const;

  std::shared_ptr<const MappedFile> file_;
  std::vector<TensorInfo> tensors_;
  std::vector<size_t> offsets_;  // of each tensor's first byte from the start of the file
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace fsdp::formats
