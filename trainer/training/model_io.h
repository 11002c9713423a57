// Weights from a Hugging Face folder into shards, and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_folder_writer.h"
#include "fsdp/fully_shard.h"
#include "models/pretrained.h"
#include "training/trained_model.h"

namespace fsdp::trainer {

// Throws when save_folder would refuse to replace what is at `path`: a file, or a folder with content that is
// no model. To be called before training, so that hours of it do not end in this error.
void check_can_save(const std::filesystem::path& path);

// Fills this rank's shards. Reads only what this rank holds; touches no other rank.
void load_into_shards(const models::PretrainedWeights& weights, const ShardedModule& sharded);

// Fills the buffers of the model that was sharded, whole.
void load_buffers(const models::PretrainedWeights& weights, const torch::nn::Module& model);

// The same with rank 0 reading, whole parameters, a unit at a time, and sending them to the others: lets fully_shard of
// `model`, whose parameters are on the meta device, do it. `weights` must outlive that.
void read_on_rank_0(const models::PretrainedWeights& weights, const torch::nn::Module& model, Options& options);

// Writes `path`, a Hugging Face folder: the weights of `model`, gathered one unit at a time, in the dtype of the
// shards, and its buffers, with this config.json. Collective over `ranks`, of which rank 0 writes; files of separate
// parameters are written by every rank, which must all reach the folder.
void save_folder(const std::filesystem::path& path, const nlohmann::json& config, const TrainedModel& model,
                 ShardedModule& sharded, Communicator& ranks, const checkpoint::HfFolderWriterOptions& options);

}  // namespace fsdp::trainer
