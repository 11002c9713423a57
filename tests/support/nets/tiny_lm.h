// Small models for tests: odd sizes, shared parameters, several kinds of layers.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "fsdp/fully_shard.h"

namespace fsdp::testing {

// A residual block with a normalisation, a two-layer perceptron and a gate.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t hidden);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::Tensor gate;
};
TORCH_MODULE(Block);

// Embedding, blocks, a final norm and a head, which may be tied to the embedding.
struct TinyLMImpl : torch::nn::Module {
  struct Config {
    int64_t vocabulary = 13;
    int64_t width = 7;
    int64_t hidden = 11;
    int64_t blocks = 3;
    bool tied = false;
  };
  explicit TinyLMImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& ids);
  torch::Tensor loss(const torch::Tensor& ids);

  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(TinyLM);

// Returns a model on test_device() with the same weights each time and in each thread, regardless of other draws of
// random numbers.
TinyLM make_tiny_lm(const TinyLMImpl::Config& config, at::ScalarType dtype = at::kFloat);

// Returns the batch that `rank` sees at `step`: [2, 5] token ids.
torch::Tensor batch_of(int64_t rank, int64_t step, int64_t vocabulary = 13);

// Returns options that make each block a unit. Hybrid strategies get two replicas, or one if there is one rank.
Options block_options(const std::shared_ptr<Communicator>& world,
                      ShardingStrategy strategy = ShardingStrategy::kFullShard, bool use_orig_params = true);

// Returns the weights of a model in fp64 after two steps of plain gradient descent, each on the batch of this rank.
std::map<std::string, torch::Tensor> weights_after_steps(const std::shared_ptr<Communicator>& world,
                                                         const Options& options);

}  // namespace fsdp::testing
