// Hooks that see, change or perform the reductions of gradients.
//
//   sharded->hooks().set_gradient_hook([](const fsdp::ReducedGradient& reduced) { reduced.gradient.clamp_(-1, 1); });
//
// Threads: a hook runs in the thread that computes backward, or in the one that waits for the reduction. Set hooks
// between steps, on all ranks alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::engine {
class Engine;
}  // namespace fsdp::engine

namespace fsdp {

class Communicator;

// The result of one reduction, before it is added to the leaves' gradients.
struct ReducedGradient {
  std::string unit;
  std::vector<std::string> fqns;  // of the parameters, in memory order
  at::Tensor gradient;            // 1-D, laid out like this rank's shard, padding included; may be changed in place
};
using GradientHook = std::function<void(const ReducedGradient& reduced)>;

// A reduction that a hook performs instead of the engine. Collective: all ranks get the same calls in the same order.
struct ReduceRequest {
  std::string unit;
  at::Tensor unsharded;                 // 1-D, padded: this rank's captured gradients; may be overwritten
  at::Tensor reduced;                   // 1-D: the hook writes this rank's part of the reduced gradient
  std::shared_ptr<Communicator> shard;  // null if the unit is not sharded; `reduced` then has the size of `unsharded`
  std::shared_ptr<Communicator> replicate;  // null if the unit has no replicas
  double scale = 1.0;                       // factor for the sum over both groups
};
using CommunicationHook = std::function<void(const ReduceRequest& request)>;

// Called with the leaves of one FlatParameter once their gradients are complete.
using UnitReducedHook = std::function<void(const std::string& unit, const std::vector<at::Tensor>& leaves)>;

// The hooks of a sharded module: ShardedModule::hooks().
class GradientHooks {
 public:
  explicit GradientHooks(std::shared_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}

  // Sets a hook that is called on each reduced gradient, in the order of reduction. An empty function removes it.
  void set_gradient_hook(GradientHook hook);
  // Sets a hook that performs the communication of reductions itself, for example with compression. It runs where the
  // engine would issue its own collectives, and blocks backward. It may use parameters of the module, which gathers
  // their units, if all ranks have gradients of the same units in the same order. Excludes requires_all_reduce = false.
  // An empty function removes it.
  void set_communication_hook(CommunicationHook hook);
  // Sets a hook that is called inside backward as soon as the gradients of a FlatParameter are reduced. If it steps an
  // optimizer over these leaves and clears their gradients, the gradients of several units never exist at the same
  // time. A parameter that gets another gradient later in the same backward is an error.
  void set_unit_reduced_hook(UnitReducedHook hook);

 private:
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace fsdp
