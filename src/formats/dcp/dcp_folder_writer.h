// Writes a checkpoint that torch.distributed.checkpoint.load reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/common/output_file.h"
#include "formats/common/staged_folder.h"
#include "formats/dcp/dcp_metadata.h"
#include "formats/torch_archive/torch_archive_writer.h"

namespace fsdp::formats {

struct DcpFolderWriterOptions {
  int64_t max_file_bytes = 5'000'000'000;      // a new file is begun with the first chunk after this size
  int64_t max_chunk_bytes = int64_t{1} << 30;  // larger tensors are split into chunks; less than 4 GiB
};

// The complete folder appears under its name when finish() returns. If anything fails, or the writer is destroyed
// before, nothing is left behind. Errors name the file and the reason. Used by one thread of one process.
class DcpFolderWriter {
 public:
  // An existing target is replaced at the end with everything in it; it must be empty or contain a .metadata file.
  explicit DcpFolderWriter(const std::filesystem::path& target, const DcpFolderWriterOptions& options = {});

  // The folder to which files that are not part of the checkpoint may be added.
  const std::filesystem::path& folder() const { return folder_.path(); }

  // Begins the tensor whose elements the next calls of append() pass, in row-major order and in pieces of any size.
  // `key_path`: its path in a nested state dict.
  void begin(const TensorInfo& info, const std::vector<DcpKey>& key_path);
  // `values`: 1-D, of the tensor's dtype, on any device.
  void append(const at::Tensor& values);

  // Adds a value that is not a tensor, given by the opcodes that build it (formats/pickle/pickle_writer.h).
  void add_value(const std::string& name, const std::vector<DcpKey>& key_path, const std::string& opcodes);

  // Every tensor must have received all its elements.
  void finish();

 private:
  void add_name(const std::string& name, const std::vector<DcpKey>& key_path);
  void check_complete() const;
  OutputFile& file();
  DcpLocation stored_until(uint64_t end);
  void next_chunk();
  void end_chunk();

  StagedFolder folder_;  // destroyed after the file in it
  DcpFolderWriterOptions options_;
  DcpMetadata metadata_;
  std::unique_ptr<OutputFile> file_;
  uint64_t end_ = 0;  // of the data in the file
  int files_ = 0;
  DcpTensor* tensor_ = nullptr;  // the tensor begun last
  size_t chunk_ = 0;             // its chunk that is being written
  int64_t left_ = 0;             // bytes that the chunk still lacks
  std::optional<TorchArchiveWriter> archive_;
};

// Returns the boxes in which a tensor is stored, in this order: each is a range of its elements in row-major order, of
// at most `max_bytes` (or one element). Returns at least one box, which may be empty.
std::vector<DcpChunk> cut_into_chunks(const TensorInfo& info, int64_t max_bytes);

}  // namespace fsdp::formats
