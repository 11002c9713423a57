#include "formats/hugging_face/hf_folder_writer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "base/check.h"
#include "formats/common/dtype.h"
#include "formats/common/json_text.h"
#include "formats/common/mapped_file.h"
#include "formats/common/output_file.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Shards = std::vector<std::vector<TensorInfo>>;

const std::map<std::string, std::string> kFileMetadata{{"format", "pt"}};

std::string shard_name(size_t shard, size_t count) {
  if (count == 1) return "model.safetensors";
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", shard + 1, count);
  return name.data();
}

// "dtype" is the newer spelling of "torch_dtype". The config's spelling is kept; without one, the older is used, which
// both old and new versions of transformers read.
json with_dtype(json config, const std::vector<TensorInfo>& tensors) {
  const auto floating = std::find_if(tensors.begin(), tensors.end(),
                                     [](const TensorInfo& info) { return c10::isFloatingType(info.dtype); });
  if (floating == tensors.end()) return config;
  const std::string dtype = hugging_face_dtype(floating->dtype);
  if (config.contains("dtype")) config["dtype"] = dtype;
  if (config.contains("torch_dtype") || !config.contains("dtype")) config["torch_dtype"] = dtype;
  return config;
}

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

bool is_tokenizer_file(const std::string& name) {
  constexpr std::array<std::string_view, 7> kNames{
      "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
      "merges.txt",     "generation_config.json"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || starts_with(name, "vocab.") ||
         starts_with(name, "chat_template");
}

std::string dump(const json& value) { return value.dump(2) + "\n"; }

}  // namespace

std::vector<std::string> tokenizer_files(const fs::path& folder) {
  std::error_code failure;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    if (entry.is_regular_file() && is_tokenizer_file(entry.path().filename())) names.push_back(entry.path().filename());
  }
  FSDP_CHECK_WITH(FileError, !failure, folder.string(), ": cannot be read: ", failure.message());
  std::sort(names.begin(), names.end());
  return names;
}

HfFolderWriter::HfFolderWriter(const fs::path& target, const json& config, const std::vector<TensorInfo>& tensors,
                               const HfFolderWriterOptions& options)
    : folder_(target) {
  TORCH_CHECK(config.is_object(), target.string(), ": config must be a JSON object, is ", json_text(config));
  TORCH_CHECK(options.max_shard_size > 0, target.string(), ": max_shard_size is ", options.max_shard_size,
              " bytes; it must be positive");
  check_replaceable(folder_.target(), "config.json", "a model folder");
  write_file(folder_.path() / "config.json", dump(with_dtype(config, tensors)));
  const std::vector<TensorInfo> stored =
      options.experts == ExpertTensors::kSeparate ? divide(tensors, config) : tensors;
  if (!options.tokenizer_source.empty()) {
    for (const std::string& name : tokenizer_files(options.tokenizer_source)) {
      write_file(folder_.path() / name, MappedFile::open(options.tokenizer_source / name)->bytes());
    }
  }
  const Shards shards = split_into_files(stored, options.max_shard_size);
  open_files(shards);
  if (shards.size() > 1) write_index(shards);
}

void HfFolderWriter::open_files(const Shards& shards) {
  for (size_t i = 0; i < shards.size(); ++i) {
    const fs::path path = folder_.path() / shard_name(i, shards.size());
    files_.push_back(std::make_unique<SafetensorsWriter>(path, shards[i], kFileMetadata));
    for (const TensorInfo& tensor : shards[i]) {
      TORCH_CHECK(files_by_name_.emplace(tensor.name, files_.back().get()).second, folder_.target().string(),
                  ": tensor ", quoted_name(tensor.name), " occurs twice");
    }
  }
}

void HfFolderWriter::write_index(const Shards& shards) {
  json weight_map = json::object();
  int64_t total_size = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const TensorInfo& tensor : shards[i]) {
      weight_map[tensor.name] = shard_name(i, shards.size());
      total_size += tensor.nbytes();
    }
  }
  write_file(folder_.path() / "model.safetensors.index.json",
             dump({{"metadata", {{"total_size", total_size}}}, {"weight_map", std::move(weight_map)}}));
}

SafetensorsWriter& HfFolderWriter::file_of(const std::string& name) const {
  const auto found = files_by_name_.find(name);
  TORCH_CHECK(found != files_by_name_.end(), folder_.target().string(), ": tensor ", quoted_name(name),
              " was not announced to the writer");
  return *found->second;
}

std::vector<TensorInfo> HfFolderWriter::divide(const std::vector<TensorInfo>& tensors, const json& config) {
  std::vector<TensorInfo> stored;
  for (const TensorInfo& info : tensors) {
    std::vector<FolderPart> parts = folder_parts(config, info);
    if (parts.empty()) {
      stored.push_back(info);
      continue;
    }
    for (const FolderPart& part : parts) stored.push_back(part.info);
    divided_[info.name].parts = std::move(parts);
  }
  return stored;
}

void HfFolderWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto divided = divided_.find(name);
  if (divided == divided_.end()) {
    file_of(name).write(name, tensor);
    return;
  }
  const at::Tensor flat = tensor.reshape(-1);
  for (const FolderPart& part : divided->second.parts) {
    const at::Tensor values = flat.narrow(0, part.begin, part.info.numel()).view(part.info.shape);
    file_of(part.info.name).write(part.info.name, values);
  }
}

void HfFolderWriter::append(const std::string& name, const at::Tensor& values) {
  const auto divided = divided_.find(name);
  if (divided == divided_.end()) {
    file_of(name).append(name, values);
    return;
  }
  int64_t& appended = divided->second.appended;
  const int64_t first = appended;
  appended += values.numel();
  for_each_part(divided->second.parts, first, appended, [&](const FolderPart& part, int64_t begin, int64_t end) {
    const at::Tensor of_part = values.narrow(0, part.begin + begin - first, end - begin);
    file_of(part.info.name).append(part.info.name, of_part);
  });
}

void HfFolderWriter::finish() {
  for (const auto& file : files_) file->finish();
  folder_.commit();
}

}  // namespace fsdp::formats
