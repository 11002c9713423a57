// Writes a training checkpoint in one process; state/training_state.h is what the ranks of a run do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/staged_folder.h"
#include "checkpoint/tensor_info.h"

namespace fsdp::checkpoint {

// The folder appears under its name, complete, when finish() returns; nothing is left behind when anything fails or the
// writer is destroyed before. Errors name the file and the reason. Used by one thread, of one process.
class CheckpointFolderWriter {
 public:
  // `tensors`: all that will be written, in the order of the files, of at most `max_file_bytes` each (a larger tensor
  // gets one of its own). An existing target is replaced at the end, with everything in it: it must be empty or hold a
  // manifest.json.
  CheckpointFolderWriter(const std::filesystem::path& target, const std::vector<TensorInfo>& tensors,
                         int64_t max_file_bytes);

  // Where files that are no part of the checkpoint may be added.
  const std::filesystem::path& folder() const { return folder_.path(); }

  // The next elements of a tensor (see SafetensorsWriter::append).
  void append(const std::string& name, const at::Tensor& values);

  // Every tensor must have been written. `state`: the manifest's.
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

// "rank-00000-of-00004.safetensors": the file of a rank, or one of several files.
std::string rank_file_name(int rank, int count);

}  // namespace fsdp::checkpoint
