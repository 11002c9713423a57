// Writes what torch.load reads: one tensor, or one value, as torch.save stores it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/output_file.h"
#include "checkpoint/tensor_info.h"
#include "checkpoint/zip_writer.h"

namespace fsdp::checkpoint {

// A tensor whose elements come in pieces. Used by one thread.
class TorchArchiveWriter {
 public:
  // The archive begins at `offset` of the file, which must outlive it. The tensor's name is not stored. It must have
  // less than 4 GiB.
  TorchArchiveWriter(OutputFile& file, uint64_t offset, const TensorInfo& info);

  // The next bytes of the elements, row-major.
  void append(std::string_view bytes) { zip_.append(bytes); }
  // When all have come; returns the offset of the archive's end in the file.
  uint64_t finish();

 private:
  ZipWriter zip_;
};

// An archive of a value that is no tensor, given by the opcodes that make it (pickle_writer.h). Returns where it ends.
uint64_t write_value_archive(OutputFile& file, uint64_t offset, const std::string& opcodes);

}  // namespace fsdp::checkpoint
