// Writes a training checkpoint in one process. See state/training_state.h for the version that the ranks of a run call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/common/staged_folder.h"
#include "formats/common/tensor_info.h"
#include "formats/safetensors/safetensors_writer.h"

namespace fsdp::formats {

// The complete folder appears under its name when finish() returns. If anything fails, or the writer is destroyed
// before, nothing is left behind. Errors name the file and the reason. Used by one thread of one process.
class CheckpointFolderWriter {
 public:
  // `tensors`: all tensors that will be written, in file order. Files have at most `max_file_bytes` each; a larger
  // tensor gets a file of its own. An existing target is replaced at the end with everything in it; it must be empty or
  // contain a manifest.json.
  CheckpointFolderWriter(const std::filesystem::path& target, const std::vector<TensorInfo>& tensors,
                         int64_t max_file_bytes);

  // The folder to which files that are not part of the checkpoint may be added.
  const std::filesystem::path& folder() const { return folder_.path(); }

  // Writes the next elements of a tensor (see SafetensorsWriter::append).
  void append(const std::string& name, const at::Tensor& values);

  // Every tensor must have been written. `state`: stored as Manifest::state.
  void finish(const nlohmann::json& state);

 private:
  struct File {
    std::string name;
    std::vector<TensorInfo> tensors;
    std::unique_ptr<SafetensorsWriter> writer;
  };
  StagedFolder folder_;  // destroyed after the files in it
  std::vector<File> files_;
  std::unordered_map<std::string, SafetensorsWriter*> files_by_name_;
};

// "rank-00000-of-00004.safetensors": the name of a rank's file, or of one of several files.
std::string rank_file_name(int rank, int count);

}  // namespace fsdp::formats
