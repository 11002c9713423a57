// Saves the trained model as a Hugging Face folder.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "formats/hugging_face/hf_folder_writer.h"
#include "setup/rank_groups.h"
#include "setup/sharded_parts.h"

namespace fsdp::trainer {

struct SavedModel {
  const nlohmann::json& config;  // the content of config.json
  const ShardedParts& parts;
  std::vector<std::string> tied;  // tied_parameters
};

// Writes `path`, a Hugging Face folder with this config.json, the weights of the model, gathered one unit at a time, in
// the dtype of the shards, and its buffers. Collective over `groups.world`: rank 0 writes, and gets the tensors of
// other stages of a pipeline one by one; every rank writes its own files of separate parameters, so with these all
// ranks must be able to access the folder.
void save_folder(const std::filesystem::path& path, const SavedModel& model, RankGroups& groups, c10::Device device,
                 const formats::HfFolderWriterOptions& options);

}  // namespace fsdp::trainer
