// The sharded run of a case: one object for each rank.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.h"
#include "fsdp/optimizer_state.h"
#include "fuzz_training/case.h"
#include "fuzz_training/modules.h"
#include "fuzz_training/record.h"

namespace fsdp::fuzz {

// The names of the parameters in each leaf.
using LeafNames = std::vector<std::vector<std::string>>;

class ShardedRun {
 public:
  // `order`: execution order of an earlier run, for automatic units.
  ShardedRun(const Case& training, const std::shared_ptr<Communicator>& world, const ExecutionOrder& order,
             Record& record);

  void run_step(int64_t step);
  void save(const std::string& folder);
  void load(const std::string& folder);
  void note_whole_parameters(const std::string& when);
  LeafNames leaf_names() const;
  ExecutionOrder execution_order() const { return sharded_->execution_order(); }

  // -- For actions --
  const Case& training() const { return training_; }
  NetImpl& net() { return *net_; }
  ShardedModule& sharded() { return *sharded_; }
  OptimizerState& state() { return *state_; }
  int64_t rank() const { return world_->rank(); }
  int64_t step() const { return step_; }
  void note(const std::string& name, const at::Tensor& value) { record_.add(action_ + ": " + name, value); }

 private:
  void zero(const std::string& how);
  void run_pass(int64_t pass);
  void run_actions(const std::string& where, const std::vector<std::string>& actions);
  void clip(const Step& step);
  void note_shards(const std::string& when);
  void note_gradients(const std::string& when);
  std::string when() const { return "step " + std::to_string(step_); }

  const Case& training_;
  std::shared_ptr<Communicator> world_;
  Record& record_;
  Net net_{nullptr};
  std::shared_ptr<ShardedModule> sharded_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<OptimizerState> state_;
  int64_t step_ = 0;
  std::string action_;
};

}  // namespace fsdp::fuzz
