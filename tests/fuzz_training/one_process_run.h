// The same case in one process, in fp64 and without sharding. It runs the passes of one rank after the other, and
// averages their gradients. Each rank has its own buffers.
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

// The expected records of a run: of each rank by itself, and values that are the same on all ranks.
struct Expected {
  std::vector<Record> of_rank;
  Record of_all;
};

class OneProcessRun {
 public:
  // `leaves`: which parameters share a leaf. Such a leaf has a gradient if one of its parameters has one.
  OneProcessRun(const Case& training, const LeafNames& leaves);

  void run_step(int64_t step);
  // Continues with another number of ranks, all of which start with rank 0's buffers and without gradients.
  void move_to(int64_t ranks);
  void note_whole_parameters(const std::string& when);
  const Expected& expected() const { return expected_; }

  // -- For actions --
  const Case& training() const { return training_; }
  NetImpl& net() { return *net_; }
  int64_t step() const { return step_; }
  // Runs `body` once for each rank, with the rank's buffers.
  void as_each_rank(const std::function<void(int64_t rank)>& body);
  void note(int64_t rank, const std::string& name, const at::Tensor& value) {
    expected_.of_rank[rank].add(action_ + ": " + name, value);
  }
  // Notes the same value for all ranks.
  void note(const std::string& name, const at::Tensor& value) {
    for (int64_t rank = 0; rank < ranks_; ++rank) note(rank, name, value);
  }
  double gradient_norm(double type) const;
  // Subtracts gradient / 64 from each parameter.
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
