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

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/staged_folder.h"
#include "checkpoint/tensor_info.h"

namespace fsdp::checkpoint {

struct HfFolderWriterOptions {
  // Bytes of tensors in one file before the next is begun; a larger tensor gets a file of its own.
  int64_t max_shard_size = 5'000'000'000;
  // Folder that the tokenizer's files, generation_config.json and chat templates are copied from; empty:
  // none.
  std::filesystem::path tokenizer_source;
};

// The folder appears under its name, complete, when finish() returns; nothing is left behind when anything
// fails or the writer is destroyed before. Errors name the file and the reason. Used by one thread, of one
// process.
class HfFolderWriter {
 public:
  // `tensors`: all that will be written, in the order of the files. config.json is `config` with the dtype of
  // the tensors. An existing target is replaced at the end, with everything in it: it must be empty or hold a
  // config.json, so that a wrong path does not cost somebody's files.
  HfFolderWriter(const std::filesystem::path& target, const nlohmann::json& config,
                 const std::vector<TensorInfo>& tensors, const HfFolderWriterOptions& options = {});

  // Stores one tensor: any device, strides and dtype (converted). Any order; each once. Nothing of it is
  // kept.
  void write(const std::string& name, const at::Tensor& tensor);
  // The same in pieces (see SafetensorsWriter::append).
  void append(const std::string& name, const at::Tensor& values);

  // Where the folder is until finish(): files that others put there become part of it.
  const std::filesystem::path& unfinished() const { return folder_.path(); }

  // Every tensor must have been written.
  void finish();

 private:
  SafetensorsWriter& file_of(const std::string& name) const;
  void open_files(const std::vector<std::vector<TensorInfo>>& shards);
  void write_index(const std::vector<std::vector<TensorInfo>>& shards);

  StagedFolder folder_;  // destroyed after the files in it
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::unordered_map<std::string, SafetensorsWriter*> files_by_name_;
};

// The names that HfFolderWriter copies from options.tokenizer_source, as far as they are there.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);

}  // namespace fsdp::checkpoint
