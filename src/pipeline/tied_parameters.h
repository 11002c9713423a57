// Parameters that two stages of a pipeline share, such as an embedding that is also the head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/communicator.h"
#include "pipeline/stage_runner.h"

namespace fsdp::pipeline {

// Each of the two stages has a copy, sharded in the same way over its data-parallel ranks. The gradients of the copies
// are added up, shard by shard, after they were reduced: the two ranks with the same shard exchange 1 / F of the
// parameter. Both form the same sum, so the copies stay equal to the bit under the same optimizer.
class TiedParameters {
 public:
  // `names`: FQNs, each of a parameter in two stages. `rank`: of this process in `group`, the pipeline's. Collective;
  // throws on all ranks if copies differ in shape, shard or value.
  TiedParameters(const std::vector<std::string>& names, const std::map<int, StageRunner>& stages, int rank,
                 std::shared_ptr<Communicator> group);

  bool empty() const { return ties_.empty(); }
  // Sets the gradients of earlier steps aside, which are sums over the stages already.
  void begin_step();
  // Adds up the gradients of this step over the two stages. The stages' reductions must be done.
  void add_up();
  // Runs `body` while the gradients of second copies are zero, so that a norm over all stages counts each parameter
  // once.
  void without_second_copies(const std::function<void()>& body);

 private:
  struct Tie {
    std::string name;
    int ranks[2] = {};      // of the first and of the second of the two stages
    at::Tensor leaves[2];   // defined on these ranks
    at::Tensor earlier[2];  // gradients of earlier steps, or undefined
  };
  struct Copy;
  static Tie make_tie(const std::string& name, std::vector<Copy> copies, const std::map<int, StageRunner>& stages,
                      int rank);
  // Returns the gradient of the copy that is not on this side, from the rank that has it.
  at::Tensor of_other(const Tie& tie, int side);

  const std::shared_ptr<Communicator> group_;
  std::vector<Tie> ties_;
  uint64_t step_ = 0;
};

}  // namespace fsdp::pipeline
