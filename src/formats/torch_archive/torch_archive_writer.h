// Writes archives for torch.load: one tensor, or one value, as torch.save stores it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/common/output_file.h"
#include "formats/common/tensor_info.h"
#include "formats/torch_archive/zip_writer.h"

namespace fsdp::formats {

// Writes a tensor whose elements arrive in pieces. Used by one thread.
class TorchArchiveWriter {
 public:
  // The archive begins at `offset` of the file, which must outlive the writer. The tensor's name is not stored. The
  // tensor must have less than 4 GiB.
  TorchArchiveWriter(OutputFile& file, uint64_t offset, const TensorInfo& info);

  // Writes the next bytes of the elements, in row-major order.
  void append(std::string_view bytes) { zip_.append(bytes); }
  // Must be called after all elements have been written. Returns the offset of the archive's end in the file.
  uint64_t finish();

 private:
  ZipWriter zip_;
};

// Writes an archive of a value that is not a tensor, given by the opcodes that build it
// (formats/pickle/pickle_writer.h). Returns the offset of the archive's end.
uint64_t write_value_archive(OutputFile& file, uint64_t offset, const std::string& opcodes);

}  // namespace fsdp::formats
