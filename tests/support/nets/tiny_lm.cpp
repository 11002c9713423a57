#include "support/nets/tiny_lm.h"

#include <mutex>

#include "support/devices/test_device.h"
#include "support/nets/tied_linear.h"
#include "support/training/sharding.h"

namespace fsdp::testing {

BlockImpl::BlockImpl(int64_t width, int64_t hidden) {
  norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  up = register_module("up", torch::nn::Linear(width, hidden));
  down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(hidden, width).bias(false)));
  gate = register_parameter("gate", torch::ones({}));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& x) { return x + gate * down(torch::gelu(up(norm(x)))); }

TinyLMImpl::TinyLMImpl(const Config& config) {
  embed = register_module("embed", torch::nn::Embedding(config.vocabulary, config.width));
  blocks = register_module("blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.blocks; ++i) blocks->push_back(testing::Block(config.width, config.hidden));
  norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
  head =
      register_module("head", torch::nn::Linear(torch::nn::LinearOptions(config.width, config.vocabulary).bias(false)));
  if (config.tied) {
    std::shared_ptr<torch::nn::LinearImpl> tied = std::make_shared<TiedLinearImpl>(embed->weight, /*bias=*/false);
    head = replace_module("head", torch::nn::Linear(std::move(tied)));
  }
}

torch::Tensor TinyLMImpl::forward(const torch::Tensor& ids) {
  torch::Tensor x = embed(ids);
  for (const auto& block : *blocks) x = block->as<testing::Block>()->forward(x);
  return head(norm(x));
}

torch::Tensor TinyLMImpl::loss(const torch::Tensor& ids) {
  torch::Tensor logits = forward(ids.narrow(1, 0, ids.size(1) - 1));
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.narrow(1, 1, ids.size(1) - 1).flatten());
}

TinyLM make_tiny_lm(const TinyLMImpl::Config& config, at::ScalarType dtype) {
  static std::mutex mutex;  // the seed is global
  std::lock_guard lock(mutex);
  torch::manual_seed(17);
  TinyLM model(config);
  model->to(test_device(), dtype);
  return model;
}

torch::Tensor batch_of(int64_t rank, int64_t step, int64_t vocabulary) {
  torch::Tensor ids = (torch::arange(10).view({2, 5}) * 3 + rank * 5 + step * 7 + rank * step) % vocabulary;
  return ids.to(test_device());
}

Options block_options(const std::shared_ptr<Communicator>& world, ShardingStrategy strategy, bool use_orig_params) {
  Options options;
  options.communicator = world;
  options.sharding_strategy = strategy;
  options.use_orig_params = use_orig_params;
  options.auto_wrap_policy = module_class_policy<BlockImpl>();
  if (is_hybrid(strategy)) options.mesh = make_mesh(world, world->size() == 1 ? 1 : world->size() / 2);
  return options;
}

std::map<std::string, torch::Tensor> weights_after_steps(const std::shared_ptr<Communicator>& world,
                                                         const Options& options) {
  auto model = make_tiny_lm({}, at::kDouble);
  auto sharded = fully_shard(*model, options);
  for (int step = 0; step < 2; ++step) {
    sharded->zero_grad();
    model->loss(batch_of(world->rank(), step)).backward();
    descend(sharded->parameters());
  }
  return weights_of(*sharded);
}

}  // namespace fsdp::testing
