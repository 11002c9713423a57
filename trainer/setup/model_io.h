// Loads weights from a Hugging Face folder into shards, and saves them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "formats/hugging_face/hf_folder_writer.h"
#include "fsdp/fully_shard.h"
#include "models/pretrained.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

// Throws if save_folder would refuse to replace the content of `path`: a file, or a non-empty folder that is not a
// model. Must be called before training, so that the error does not come after hours of training.
void check_can_save(const std::filesystem::path& path);

// Fills this rank's shards. Reads only the parts that this rank holds, and does not communicate.
void load_into_shards(const models::PretrainedWeights& weights, const ShardedModule& sharded);

// Fills all buffers of the sharded model, whole.
void load_buffers(const models::PretrainedWeights& weights, const torch::nn::Module& model);

// Sets `options` so that fully_shard of `model`, whose parameters are on the meta device, loads the weights: rank 0
// reads whole parameters, one unit at a time, and sends them to the other ranks. `weights` must outlive the call of
// fully_shard.
void read_on_rank_0(const models::PretrainedWeights& weights, const torch::nn::Module& model, Options& options);

// Writes `path`, a Hugging Face folder with this config.json, the weights of `model`, gathered one unit at a time, in
// the dtype of the shards, and its buffers. Collective over `ranks`: rank 0 writes; every rank writes its own files of
// separate parameters, so all ranks must be able to access the folder.
void save_folder(const std::filesystem::path& path, const nlohmann::json& config, const TrainedModel& model,
                 ShardedModule& sharded, Communicator& ranks, const formats::HfFolderWriterOptions& options);

}  // namespace fsdp::trainer
