// Code that the examples share: a small model, options that shard it, random batches, a check, and the frame of main().
#pragma once

#include <torch/torch.h>

#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"

namespace example {

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})))),
        up(register_module("up", torch::nn::Linear(64, 256))),
        down(register_module("down", torch::nn::Linear(256, 64))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() : head(register_module("head", torch::nn::Linear(64, 1))) {
    for (const char* name : {"block0", "block1", "block2", "block3"}) blocks.push_back(register_module(name, Block()));
  }
  at::Tensor forward(at::Tensor x) {
    for (Block& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<Block> blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

// Makes a model that has the same weights on every rank.
inline Net make_net() {
  torch::manual_seed(0);
  return Net();
}

// Options for the ranks that torchrun or mpirun started (a single rank without a launcher). Each Block becomes a unit.
// The head belongs to the root unit.
inline fsdp::Options make_options(const std::shared_ptr<fsdp::Communicator>& communicator =
                                      fsdp::make_cpu_communicator(fsdp::rank_environment()).communicator) {
  fsdp::Options options;
  options.communicator = communicator;
  options.auto_wrap_policy = fsdp::module_class_policy<BlockImpl>();
  return options;
}

// Returns the inputs of one rank for one step. The model learns the sine of the first column.
inline at::Tensor make_input(int rank, int step) {
  torch::manual_seed(1 + 1000 * step + rank);
  return torch::randn({16, 64});
}
template <typename Model>
at::Tensor loss_of(Model& model, const at::Tensor& input) {
  return torch::mse_loss(model.forward(input), input.narrow(1, 0, 1).sin());
}

// Returns all gradients that this rank holds, concatenated.
inline at::Tensor gradients_of(const fsdp::ShardedModule& sharded) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : sharded.parameters()) {
    gradients.push_back(leaf.grad().defined() ? leaf.grad().flatten() : torch::zeros({leaf.numel()}));
  }
  return torch::cat(gradients);
}

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("this does not hold: " + what);
}

// Runs `body` and returns the exit status of the program. If `body` throws, prints the error and returns 1.
inline int run(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << "error: " << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace example
