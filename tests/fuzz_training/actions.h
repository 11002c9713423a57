// What all ranks may do together between the parts of a step, by name.
#pragma once

#include <string>
#include <vector>

namespace fsdp::fuzz {

class ShardedRun;
class OneProcessRun;

struct Action {
  std::string name;
  std::string call;  // for readers: what it does, about as C++
  // Whether it may stand between a forward and its backward: it writes neither parameters nor gradients.
  bool keeps_graphs;
  bool needs_gradients;  // stands between the last backward and the optimizer's step only
  void (*sharded)(ShardedRun& run);
  void (*in_one_process)(OneProcessRun& run);
};

const std::vector<Action>& all_actions();
// Throws where there is none of this name.
const Action& action_of(const std::string& name);

}  // namespace fsdp::fuzz
