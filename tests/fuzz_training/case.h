// One case of the fuzzer: everything that a training run depends on, as plain data that can be printed, changed and run
// again. The JSON leaves out fields that have their default, so that a reduced case shows only what matters.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::fuzz {

// One layer of the model, from [batch, width] to [batch, width], or a group of layers. layer_kinds.cpp lists the kinds.
struct Layer {
  std::string kind = "linear";
  int64_t size = 3;               // hidden size, channels or rows, depending on the kind
  std::string frozen = "none";    // "none", "all", "bias": parameters that require no gradient
  std::string uses = "always";    // "even_steps", "odd_steps": skipped in other steps, on all ranks
  int64_t repeat = 1;             // how often forward calls the layer
  bool checkpoint = false;        // recomputed in backward
  bool residual = false;          // adds its input to its result
  bool ignored = false;           // its parameters are not sharded
  bool unit = false;              // a unit of its own if Sharding::wrap is "by_hand"
  std::string strategy = "";      // of this unit; empty: Sharding's strategy
  std::vector<Layer> children{};  // of a "group"
};

struct Model {
  int64_t width = 5;
  int64_t batch = 3;
  std::vector<Layer> layers{};
  bool gain = true;       // a parameter of the root module that multiplies the result
  bool deferred = false;  // built without memory (deferred_init)
};

struct Sharding {
  std::string strategy = "full";  // "grad_op", "no", "hybrid", "hybrid_zero2"
  int64_t reshard = -1;           // -1: unset, 0: false, 1: true, N
  // Units: "none" (one for all), "layers", "groups", "leaves" (every module with parameters), "size" (at least 30
  // elements), "auto", "by_hand" (Layer::unit), "siblings" (each two layers of the root, without their parent).
  std::string wrap = "none";
  bool orig = true;
  bool rows = false;            // Options::shard_cut
  std::string params = "fp64";  // dtypes: "fp64", "fp32", "bf16"
  std::string reduce = "params";
  std::string buffers = "keep";
  bool keep_memory = false;
  bool cpu_offload = false;
  bool offload_files = false;
  std::string backward_prefetch = "pre";  // "none", "post"
  bool forward_prefetch = true;
  int64_t max_gathered = 2;  // 0: no limit
  bool one_communicator = false;
  bool strict = false;  // test mode: early release, and released memory is overwritten
  bool sync_states = false;
  bool full_norms = false;  // normalisations in full precision
  int64_t divide = 0;       // the gradient divide factor; 0: the number of ranks
  bool see_norm = false;    // reductions compute the norm of gradients
};

// Forwards and the backward after them. The losses of several forwards are added.
struct Pass {
  int64_t forwards = 1;
  // "plain"; "twice" (two backward passes over one graph); "each" (one backward for each loss); "penalty" (the loss
  // contains a gradient, made with create_graph); "grad" (autograd::grad for parameters, before backward).
  std::string backward = "plain";
  bool sync = true;            // false: gradients stay on each rank, unreduced
  bool all_reduce = true;      // false: gradients are reduced only in the shard groups
  bool is_last = true;         // false: backward does not wait for its reductions
  std::string outside = "no";  // parameters used directly in the loss: "first", "all"
  // Actions between forward and backward.
  std::vector<std::string> between{};
};

// One training step. actions.cpp lists the actions.
struct Step {
  std::string zero = "sharded";  // "sharded_zeros", "module", "module_zeros", "optimizer", "skip"
  std::vector<std::string> before{};
  std::vector<Pass> passes = {Pass()};
  std::vector<std::string> ready{};  // actions between the last backward and the optimizer's step
  double clip = 0;                   // largest norm of gradients; 0: they are not clipped
  double clip_type = 2;
  bool optimize = true;
  std::vector<std::string> after{};
};

struct Case {
  int64_t ranks = 2;
  std::string communicator = "gloo";  // "shm", "hosts"
  Model model{};
  Sharding sharding{};
  std::string optimizer = "sgd";  // "momentum", "nesterov", "adam", "amsgrad", "adamw", "adagrad", "rmsprop"
  double weight_decay = 0;
  std::vector<Step> steps{};
  // After this many steps, the run is saved to a folder and continues with ranks_later ranks. 0: never.
  int64_t move_after = 0;
  int64_t ranks_later = 1;
};

// JSON with fields in the order of their declarations.
using Json = nlohmann::ordered_json;
Json to_json(const Case& training);
// Throws if a name, or the type of a value, is unknown.
Case case_from_json(const Json& text);

// Calls visit(layer, depth) for each layer, groups before their children.
template <typename Layers, typename Visit>
void for_each_layer(Layers& layers, const Visit& visit, int depth = 0) {
  for (auto& layer : layers) {
    visit(layer, depth);
    for_each_layer(layer.children, visit, depth + 1);
  }
}

// Calls visit(actions) for each list of actions.
template <typename Steps, typename Visit>
void for_each_action_list(Steps& steps, const Visit& visit) {
  for (auto& step : steps) {
    visit(step.before);
    for (auto& pass : step.passes) visit(pass.between);
    visit(step.ready);
    visit(step.after);
  }
}

}  // namespace fsdp::fuzz
