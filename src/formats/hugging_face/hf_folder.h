// A Hugging Face model folder: config.json, and one model.safetensors or several shards with
// model.safetensors.index.json. See hf_folder_writer.h for writing one.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/common/tensor_info.h"
#include "formats/safetensors/safetensors.h"

namespace fsdp::formats {

// Reads only headers until a tensor is requested, and then only its part of the memory-mapped file. Threads: const
// functions may be called from any number of threads.
class HfFolder {
 public:
  // Opens and validates the folder. Errors name the file, key or tensor: a missing folder or file, malformed JSON (with
  // line and column) or safetensors, an index that points outside the folder, a shard that lacks a tensor that the
  // index lists for it or contains one that the index does not list, a tensor in two shards.
  explicit HfFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // config.json, an object.
  const nlohmann::json& config() const { return config_; }

  // In the order of the files; within a file, in the order of its data.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Returns null if there is no such tensor.
  const TensorInfo* find(const std::string& name) const;

  // Returns the safetensors file that contains the tensor.
  const std::filesystem::path& file(const std::string& name) const;

  // Returns the whole tensor as a read-only view of the mapped file (see SafetensorsFile::tensor).
  at::Tensor tensor(const std::string& name) const;
  // Copies elements [begin, end) of the flattened tensor into `out` (see SafetensorsFile::read_range).
  void read_range(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const;

  // Throws unless the folder contains exactly the expected names with the expected shapes (dtypes may differ, as
  // reading converts). The error lists missing, misshapen and extra tensors. Extra tensors for which `ignore_extra`
  // returns true are ignored.
  void check_tensors(const std::vector<TensorInfo>& expected,
                     const std::function<bool(const std::string&)>& ignore_extra = nullptr) const;

 private:
  void open_single_file(const std::filesystem::path& file);
  void open_shards(const std::filesystem::path& index);
  void add_file(SafetensorsFile file);
  const SafetensorsFile& file_of(const std::string& name) const;

  std::filesystem::path path_;
  nlohmann::json config_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  struct Place {
    size_t file;
    size_t tensor;
  };
  std::unordered_map<std::string, Place> index_;
};

}  // namespace fsdp::formats
