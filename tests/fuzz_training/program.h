// Code that the sharded run and the run in one process share: batches, losses, backward passes of one rank.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

#include "fuzz_training/case.h"
#include "fuzz_training/modules.h"
#include "fuzz_training/record.h"

namespace fsdp::fuzz {

// A position in one rank's run.
struct Place {
  int64_t rank = 0;
  int64_t step = 0;
  int64_t pass = 0;
  std::string name() const { return "step " + std::to_string(step) + ", pass " + std::to_string(pass); }
};

// The forwards of one rank's pass and, when finish() is called, its backward.
class RankPass {
 public:
  using Backward = std::function<void(const torch::Tensor& loss, bool retain_graph)>;
  // Runs the forwards and records outputs and losses.
  RankPass(const Case& training, NetImpl& net, const Place& place, Record& record);
  void finish(const Backward& backward);

 private:
  torch::Tensor loss_of(int64_t number);
  void note_own_gradients();

  const Pass& pass_;
  const Case& training_;
  NetImpl& net_;
  const Place place_;
  Record& record_;
  std::vector<torch::Tensor> losses_;
};

// Runs a forward without gradients and returns its output.
torch::Tensor forward_alone(const Case& training, NetImpl& net, int64_t rank, int64_t step);

// Makes an optimizer of the case's kind, with options that do not amplify rounding errors.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Case& training, const std::vector<torch::Tensor>& leaves);

void note_buffers(const NetImpl& net, const std::string& when, Record& record);

}  // namespace fsdp::fuzz
