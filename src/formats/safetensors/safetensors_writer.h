// Writes safetensors files tensor by tensor, without ever holding a whole file in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/common/checksum.h"
#include "formats/common/output_file.h"
#include "formats/common/tensor_info.h"

namespace fsdp::formats {

// The file appears under its name, complete and on the disk, when finish() returns. Until then it has a temporary name
// in the same folder, and it is removed if anything fails or the writer is destroyed unfinished. Errors name the file
// and the reason ("No space left on device"). Used by one thread.
class SafetensorsWriter {
 public:
  // Lays out the file, allocates its disk space and writes the header. Data lie in the order of `tensors`, except that
  // dtypes with larger elements come first, starting at a multiple of 8 bytes, so that every tensor is aligned. Names
  // must be unique and not "__metadata__".
  SafetensorsWriter(std::filesystem::path path, const std::vector<TensorInfo>& tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // Stores one tensor of any device, strides and dtype (converted to the dtype of the layout), with the shape of the
  // layout. Tensors may come in any order, each once.
  void write(const std::string& name, const at::Tensor& tensor);
  // Stores the next elements of one tensor, in row-major order and in pieces of any size, 1-D, converted as by write().
  // A tensor without elements needs one empty piece.
  void append(const std::string& name, const at::Tensor& values);

  // The offset in the file of a tensor that was written, and the checksums of its bytes (formats/common/checksum.h).
  struct Place {
    uint64_t offset;
    std::vector<uint64_t> checksums;
  };
  Place place(const std::string& name) const;
  // The sizes of the whole file and of the part before the tensors' data, and the checksum of that part.
  uint64_t bytes() const { return bytes_; }
  uint64_t header_bytes() const { return header_bytes_; }
  uint64_t header_checksum() const { return header_checksum_; }

  // Every tensor must have been written.
  void finish();

 private:
  struct Slot {
    TensorInfo info;
    uint64_t offset;       // in the file
    int64_t written = -1;  // elements; -1: no piece has come, not even an empty one
    std::unique_ptr<BlockChecksums> running{};
    std::vector<uint64_t> checksums{};

    bool is_complete() const { return written == info.numel(); }
  };
  Slot& slot(const std::string& name);
  void write_values(Slot& slot, const at::Tensor& flat);

  std::vector<Slot> slots_;
  std::unordered_map<std::string, size_t> index_;
  OutputFile file_;
  uint64_t bytes_ = 0;
  uint64_t header_bytes_ = 0;
  uint64_t header_checksum_ = 0;
};

}  // namespace fsdp::formats
