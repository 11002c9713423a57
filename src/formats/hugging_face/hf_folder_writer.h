// Writes a model folder that transformers loads.
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
#include "formats/hugging_face/expert_tensors.h"
#include "formats/safetensors/safetensors_writer.h"

namespace fsdp::formats {

// How a folder holds the weights of experts, which the model has in one tensor for each layer (expert_tensors.h).
enum class ExpertTensors : uint8_t {
  kSeparate,  // a tensor for each expert and projection, under the names of published folders
  kFused,     // the tensors of the model
};

struct HfFolderWriterOptions {
  // Tensor bytes in one file before the next file is begun; a larger tensor gets a file of its own.
  int64_t max_shard_size = 5'000'000'000;
  // The folder from which the tokenizer's files, generation_config.json and chat templates are copied; empty: none.
  std::filesystem::path tokenizer_source = {};
  ExpertTensors experts = ExpertTensors::kSeparate;
};

// The complete folder appears under its name when finish() returns. If anything fails, or the writer is destroyed
// before, nothing is left behind. Errors name the file and the reason. Used by one thread of one process.
class HfFolderWriter {
 public:
  // `tensors`: all tensors of the model that will be written, in file order. config.json is `config` with the dtype of
  // the tensors. An existing target is replaced at the end with everything in it; it must be empty or contain a
  // config.json, so that a wrong path does not destroy other files.
  HfFolderWriter(const std::filesystem::path& target, const nlohmann::json& config,
                 const std::vector<TensorInfo>& tensors, const HfFolderWriterOptions& options = {});

  // Stores one tensor of any device, strides and dtype (converted). Tensors may come in any order, each once. Keeps no
  // reference to it.
  void write(const std::string& name, const at::Tensor& tensor);
  // Stores a tensor in pieces (see SafetensorsWriter::append), whose elements may belong to several experts.
  void append(const std::string& name, const at::Tensor& values);

  // The folder's path until finish(). Files that others put there become part of the folder.
  const std::filesystem::path& unfinished() const { return folder_.path(); }

  // Every tensor must have been written.
  void finish();

 private:
  // A tensor of the model that the folder holds in parts.
  struct Divided {
    std::vector<FolderPart> parts;
    int64_t appended = 0;  // elements
  };

  // Returns the tensors of the folder, and notes those that are divided.
  std::vector<TensorInfo> divide(const std::vector<TensorInfo>& tensors, const nlohmann::json& config);
  SafetensorsWriter& file_of(const std::string& name) const;
  void open_files(const std::vector<std::vector<TensorInfo>>& shards);
  void write_index(const std::vector<std::vector<TensorInfo>>& shards);

  StagedFolder folder_;  // destroyed after the files in it
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::unordered_map<std::string, SafetensorsWriter*> files_by_name_;
  std::unordered_map<std::string, Divided> divided_;  // by name in the model
};

// Returns the names of the files in `folder` that HfFolderWriter copies from options.tokenizer_source.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);

}  // namespace fsdp::formats
