// What both runs, sharded and in one process, do alike: batches, losses, backward passes of one rank.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

#include "fuzz_training/case.h"
#include "fuzz_training/modules.h"
#include "fuzz_training/record.h"

namespace fsdp::fuzz {

// Where in a run something happens, for one rank.
struct Place {
  int64_t rank = 0;
  int64_t step = 0;
  int64_t pass = 0;
  std::string name() const { return "step " + std::to_string(step) + ", pass " + std::to_string(pass); }
};

// One rank's forwards of a pass; then, when finish() is called, its backward.
class RankPass {
 public:
  using Backward = std::function<void(const torch::Tensor& loss, bool retain_graph)>;
  // Runs the forwards and notes outputs and losses.
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

// A forward without gradients; its output.
torch::Tensor forward_alone(const Case& training, NetImpl& net, int64_t rank, int64_t step);

// An optimizer of the case's kind. Options are such that rounding errors are not amplified.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Case& training, const std::vector<torch::Tensor>& leaves);

void note_buffers(const NetImpl& net, const std::string& when, Record& record);

}  // namespace fsdp::fuzz
