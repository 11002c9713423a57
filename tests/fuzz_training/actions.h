// Named actions that all ranks can perform together between the parts of a step.
#pragma once

#include <string>
#include <vector>

namespace fsdp::fuzz {

class ShardedRun;
class OneProcessRun;

struct Action {
  std::string name;
  std::string call;  // C++ code that shows readers approximately what the action does
  // Whether the action may come between a forward and its backward: it writes neither parameters nor gradients.
  bool keeps_graphs;
  bool needs_gradients;  // allowed only between the last backward and the optimizer's step
  void (*sharded)(ShardedRun& run);
  void (*in_one_process)(OneProcessRun& run);
};

const std::vector<Action>& all_actions();
// Throws if there is no action of this name.
const Action& action_of(const std::string& name);

}  // namespace fsdp::fuzz
