// Measures the peak memory of a training step on one rank, compared with the memory that the step needs at least.
// benchmarks/memory.py starts it once for each rank, with the environment of torchrun.
// Usage: memory VARIANT LAYERS WIDTH VOCABULARY BATCH LENGTH. Rank 0 prints bytes, as JSON.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "block.h"
#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"
#include "support/memory/counting_allocator.h"

namespace {

using fsdp::benchmarks::Block;
using fsdp::benchmarks::BlockImpl;
using fsdp::testing::CountedMemory;

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t layers, int64_t width, int64_t vocabulary)
      : embed(register_module("embed", torch::nn::Embedding(vocabulary, width))),
        head(register_module("head", torch::nn::Linear(width, vocabulary))) {
    for (int64_t i = 0; i < layers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block(width, 4 * width)));
  }
  torch::Tensor run(torch::Tensor x, const torch::Tensor& tokens) {
    for (Block& block : blocks) x = block(x);
    return torch::nn::functional::cross_entropy(head(x).flatten(0, 1), tokens.flatten());
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return run(embed(tokens), tokens); }
  torch::nn::Embedding embed;
  torch::nn::Linear head;
  std::vector<Block> blocks;
};
TORCH_MODULE(Model);

// Returns the memory that forward and backward need in addition to parameters and their gradients: the plain model's
// peak while only gradients of activations are computed.
int64_t activation_bytes(CountedMemory& memory, Model& model, const torch::Tensor& tokens) {
  torch::Tensor x = model->embed(tokens).detach().requires_grad_();
  const int64_t before = memory.current_bytes() - static_cast<int64_t>(x.nbytes());
  memory.reset_peak();
  (void)torch::autograd::grad({model->run(x, tokens)}, {x});
  return memory.peak_bytes() - before;
}

int64_t parameter_bytes(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const torch::Tensor& parameter : module.parameters()) sum += static_cast<int64_t>(parameter.nbytes());
  return sum;
}

fsdp::Options options_for(const std::string& variant, std::shared_ptr<fsdp::Communicator> communicator) {
  fsdp::Options options;
  options.communicator = std::move(communicator);
  if (variant == "auto_units") {
    options.auto_units.emplace();
  } else {
    options.auto_wrap_policy = fsdp::module_class_policy<BlockImpl>();
  }
  options.limit_all_gathers = variant != "no limit";
  options.keep_memory = variant == "keep_memory";
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: memory VARIANT LAYERS WIDTH VOCABULARY BATCH LENGTH\n");
    return 2;
  }
  at::set_num_threads(1);
  torch::manual_seed(0);
  const auto communicator = fsdp::make_gloo_communicator(fsdp::rank_environment());
  CountedMemory memory;
  const int64_t vocabulary = std::atoll(argv[4]);
  Model model(std::atoll(argv[2]), std::atoll(argv[3]), vocabulary);
  const torch::Tensor tokens = torch::randint(vocabulary, {std::atoll(argv[5]), std::atoll(argv[6])});
  const int64_t activations = activation_bytes(memory, model, tokens);
  const int64_t all = parameter_bytes(*model), block = parameter_bytes(*model->blocks.front());
  const int64_t root = parameter_bytes(*model->embed) + parameter_bytes(*model->head);

  auto sharded = fsdp::fully_shard(model, options_for(argv[1], communicator));
  torch::optim::AdamW optimizer(sharded->parameters());
  constexpr int kWarmUp = 3, kSteps = 3;
  for (int step = 0; step < kWarmUp + kSteps; ++step) {
    if (step == kWarmUp) memory.reset_peak();
    sharded->zero_grad();
    model->forward(tokens).backward();
    optimizer.step();
  }
  if (communicator->rank() == 0) {
    const int64_t shards = 4 * all / communicator->size();  // parameters, gradients, two means
    std::printf("{\"peak\": %lld, \"shards\": %lld, \"root\": %lld, \"units\": %lld, \"activations\": %lld}\n",
                static_cast<long long>(memory.peak_bytes()), static_cast<long long>(shards),
                static_cast<long long>(2 * root), static_cast<long long>(2 * 2 * block),
                static_cast<long long>(activations));
    std::fprintf(stderr, "%s", sharded->diagnostics().memory_summary().c_str());
  }
  return 0;
}
