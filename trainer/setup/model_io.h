// Loads weights from a Hugging Face folder into shards.
#pragma once

#include <filesystem>

#include "fsdp/fully_shard.h"
#include "models/pretrained.h"

namespace fsdp::trainer {

// Throws if save_folder would refuse to replace the content of `path`: a file, or a non-empty folder that is not a
// model. Must be called before training, so that the error does not come after hours of training.
void check_can_save(const std::filesystem::path& path);

// Fills this rank's shards. Reads only the parts that this rank holds, and does not communicate.
void load_into_shards(const models::PretrainedWeights& weights, const ShardedModule& sharded);

// Fills all buffers of the sharded model, whole.
void load_buffers(const models::PretrainedWeights& weights, const torch::nn::Module& model);

// Sets `options` so that fully_shard of `model`, whose parameters are on the meta device, reads whole parameters of the
// weights, one unit at a time: on each rank or, with sync_module_states, on rank 0, which sends them to the others.
// `weights` must outlive the call of fully_shard.
void read_whole(const models::PretrainedWeights& weights, const torch::nn::Module& model, Options& options);

}  // namespace fsdp::trainer
