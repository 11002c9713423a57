#include "fuzz_training/generator.h"

#include <initializer_list>
#include <random>
#include <stdexcept>
#include <string>

#include "fuzz_training/actions.h"
#include "fuzz_training/modules.h"
#include "fuzz_training/rules.h"

namespace fsdp::fuzz {
namespace {

// Draws with the standard's engine only: its distributions differ between standard libraries, its engines do not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t bound) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(bound)); }
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<int64_t>(values.size())));
  }
  template <typename T>
  T one_of(const std::vector<T>& values) {
    return values[below(static_cast<int64_t>(values.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

// ---------------------------------------------------------------- the model

std::vector<Layer> draw_layers(Random& random, int64_t count, int depth);

Layer draw_layer(Random& random, int depth) {
  Layer layer;
  if (depth < 2 && random.chance(20)) {
    layer.kind = "group";
    layer.children = draw_layers(random, random.between(1, 3), depth + 1);
  } else {
    layer.kind = random.chance(30) ? random.one_of({"linear", "mlp", "bare", "tied"}) : random.one_of(layer_kinds());
    layer.ignored = random.chance(3);
  }
  layer.size = random.one_of({1, 2, 3, 5, 7, 11});
  if (random.chance(15)) layer.frozen = random.one_of({"all", "bias"});
  if (random.chance(12)) layer.uses = random.one_of({"even_steps", "odd_steps"});
  if (random.chance(10)) layer.repeat = random.between(2, 3);
  layer.checkpoint = random.chance(10);
  layer.residual = random.chance(25);
  layer.unit = random.chance(40);
  if (random.chance(4)) layer.strategy = random.one_of({"full", "grad_op", "no"});
  return layer;
}

std::vector<Layer> draw_layers(Random& random, int64_t count, int depth) {
  std::vector<Layer> layers;
  for (int64_t i = 0; i < count; ++i) layers.push_back(draw_layer(random, depth));
  return layers;
}

Model draw_model(Random& random) {
  Model model;
  model.width = random.one_of({2, 3, 5, 6, 7});
  model.batch = random.between(2, 4);
  model.layers = draw_layers(random, random.between(1, 5), 0);
  model.gain = random.chance(70);
  model.deferred = random.chance(10);
  return model;
}

// ---------------------------------------------------------------- the sharding

void draw_dtypes(Random& random, Sharding& sharding) {
  if (!random.chance(15)) return;
  sharding.params = random.one_of({"fp64", "fp32", "fp32", "bf16"});
  sharding.reduce = random.one_of({"params", "fp64", "fp32"});
  if (sharding.params != "fp64" && random.chance(40)) sharding.buffers = "fp32";
  sharding.full_norms = random.chance(40);
}

void draw_overlap(Random& random, Sharding& sharding) {
  sharding.backward_prefetch = random.one_of({"pre", "pre", "post", "none"});
  sharding.forward_prefetch = random.chance(70);
  sharding.max_gathered = random.one_of({2, 2, 1, 3, 0});
  sharding.one_communicator = random.chance(15);
}

Sharding draw_sharding(Random& random, int64_t ranks) {
  Sharding sharding;
  sharding.strategy = random.one_of({"full", "full", "full", "grad_op", "no"});
  if (ranks % 2 == 0 && random.chance(25)) sharding.strategy = random.one_of({"hybrid", "hybrid_zero2"});
  const bool releases = sharding.strategy == "full" || sharding.strategy == "hybrid";
  if (random.chance(40)) sharding.reshard = releases ? random.between(0, ranks == 4 ? 2 : 1) : 0;
  sharding.wrap = random.one_of({"none", "layers", "groups", "leaves", "size", "auto", "by_hand", "siblings"});
  sharding.orig = sharding.wrap == "auto" || random.chance(60);
  draw_dtypes(random, sharding);
  sharding.keep_memory = random.chance(25);
  sharding.cpu_offload = random.chance(10);
  sharding.offload_files = random.chance(8);
  draw_overlap(random, sharding);
  sharding.strict = random.chance(50);
  sharding.sync_states = random.chance(10);
  if (random.chance(8)) sharding.divide = random.between(1, 5);
  sharding.see_norm = random.chance(20);
  sharding.rows = random.chance(30);
  return sharding;
}

// ---------------------------------------------------------------- the loop

std::vector<std::string> draw_actions(Random& random, int percent, bool keeps_graphs, bool has_gradients) {
  std::vector<std::string> actions;
  while (random.chance(percent) && actions.size() < 3) {
    const Action& action = all_actions()[random.below(all_actions().size())];
    if ((keeps_graphs && !action.keeps_graphs) || (!has_gradients && action.needs_gradients)) continue;
    actions.push_back(action.name);
  }
  return actions;
}

Pass draw_pass(Random& random, bool last, bool hybrid) {
  Pass pass;
  pass.forwards = random.chance(15) ? random.between(2, 3) : 1;
  if (random.chance(30)) pass.backward = random.one_of({"twice", "each", "penalty", "grad"});
  if (!last) {
    pass.sync = random.chance(50);
    pass.all_reduce = !hybrid || !pass.sync || random.chance(50);
  }
  pass.is_last = last ? random.chance(90) : random.chance(50);
  if (random.chance(12)) pass.outside = random.one_of({"first", "all"});
  pass.between = draw_actions(random, 12, true, false);
  return pass;
}

Step draw_step(Random& random, bool hybrid) {
  Step step;
  step.zero = random.one_of({"sharded", "sharded", "sharded_zeros", "module", "module_zeros", "optimizer", "skip"});
  step.before = draw_actions(random, 12, false, false);
  const int64_t passes = random.chance(30) ? random.between(2, 3) : 1;
  step.passes.clear();
  for (int64_t i = 0; i < passes; ++i) step.passes.push_back(draw_pass(random, i == passes - 1, hybrid));
  step.ready = draw_actions(random, 15, false, true);
  if (random.chance(25)) step.clip = random.one_of({0.05, 0.5, 10.0});
  if (random.chance(20)) step.clip_type = random.one_of({1.0, 3.0});
  step.optimize = random.chance(95);
  step.after = draw_actions(random, 12, false, false);
  return step;
}

Case draw_case(Random& random) {
  Case training;
  training.ranks = random.one_of({1, 2, 2, 2, 3, 3, 4, 4});
  training.communicator = random.one_of({"gloo", "shm"});
  if (training.ranks == 4 && random.chance(20)) training.communicator = "hosts";
  training.model = draw_model(random);
  training.sharding = draw_sharding(random, training.ranks);
  training.optimizer = random.one_of({"sgd", "momentum", "nesterov", "adam", "amsgrad", "adamw", "adagrad", "rmsprop"});
  if (random.chance(30)) training.weight_decay = 0.1;
  const bool hybrid = training.sharding.strategy.rfind("hybrid", 0) == 0;
  const int64_t steps = random.between(1, 4);
  for (int64_t i = 0; i < steps; ++i) training.steps.push_back(draw_step(random, hybrid));
  if (random.chance(15)) {
    training.move_after = random.between(1, steps);
    training.ranks_later = random.between(1, 4);
  }
  return training;
}

}  // namespace

Case case_of_seed(uint64_t seed, bool known_defects) {
  Random random(seed);
  for (int attempt = 0; attempt < 10000; ++attempt) {
    Case training = draw_case(random);
    if (!objection(training) && (known_defects || !known_defect(training))) return training;
  }
  throw std::logic_error("fuzz_training: the rules object to every case that is drawn");
}

}  // namespace fsdp::fuzz
