// The same case in one process, in fp64 and without sharding: each rank's passes one after the other, their gradients
// averaged. Each rank has its own buffers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/optimizer_state.h"
#include "fuzz_training/case.h"
#include "fuzz_training/modules.h"
#include "fuzz_training/record.h"
#include "fuzz_training/sharded_run.h"

namespace fsdp::fuzz {

// What the ranks of a run should see: each for itself, and all alike.
struct Expected {
  std::vector<Record> of_rank;
  Record of_all;
};

class OneProcessRun {
 public:
  // `leaves`: which parameters share a leaf: such a leaf has a gradient when one of its parameters has.
  OneProcessRun(const Case& training, const LeafNames& leaves);

  void run_step(int64_t step);
  // Goes on with another number of ranks, which have rank 0's buffers and no gradients.
  void move_to(int64_t ranks);
  void note_whole_parameters(const std::string& when);
  const Expected& expected() const { return expected_; }

  // -- For actions --
  const Case& training() const { return training_; }
  NetImpl& net() { return *net_; }
  int64_t step() const { return step_; }
  // Runs `body` as each rank, with its buffers.
  void as_each_rank(const std::function<void(int64_t rank)>& body);
  void note(int64_t rank, const std::string& name, const at::Tensor& value) {
    expected_.of_rank[rank].add(action_ + ": " + name, value);
  }
  // For all ranks alike.
  void note(const std::string& name, const at::Tensor& value) {
    for (int64_t rank = 0; rank < ranks_; ++rank) note(rank, name, value);
  }
  double gradient_norm(double type) const;
  // parameter -= gradient / 64
  void descend();

 private:
  void zero(const std::string& how);
  void run_pass(int64_t pass);
  void run_actions(const std::string& where, const std::vector<std::string>& actions);
  void complete_leaves();
  void clip(const Step& step);
  void note_gradients();
  void note_parameters();
  std::string when() const { return "step " + std::to_string(step_); }

  Case training_;
  LeafNames leaves_;
  Net net_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;  // sharded ones
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<OptimizerState> state_;
  int64_t ranks_;
  std::vector<std::map<std::string, at::Tensor>> buffers_;  // by rank
  Expected expected_;
  int64_t step_ = 0;
  std::string action_;
};

}  // namespace fsdp::fuzz
