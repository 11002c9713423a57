#include "fuzz_training/rules.h"

#include <algorithm>
#include <limits>
#include <set>

#include "fuzz_training/actions.h"

namespace fsdp::fuzz {
namespace {

// A text, or null if there is no objection.
using Objection = const char*;

template <typename Predicate>
bool any_layer(const Case& training, const Predicate& predicate) {
  bool any = false;
  for_each_layer(training.model.layers, [&](const Layer& layer, int) { any = any || predicate(layer); });
  return any;
}

bool has_kind(const Case& training, const std::set<std::string>& kinds) {
  return any_layer(training, [&](const Layer& layer) { return kinds.count(layer.kind) > 0; });
}

template <typename Predicate>
bool any_pass(const Case& training, const Predicate& predicate) {
  return std::any_of(training.steps.begin(), training.steps.end(),
                     [&](const Step& step) { return std::any_of(step.passes.begin(), step.passes.end(), predicate); });
}

bool is_hybrid(const Case& training) { return training.sharding.strategy.rfind("hybrid", 0) == 0; }

bool is_low(const Case& training) {
  const Sharding& s = training.sharding;
  return s.params != "fp64" || (s.reduce != "params" && s.reduce != "fp64") || s.buffers != "keep";
}

const std::set<std::string> kWithStatistics = {"batch_norm1d", "batch_norm2d", "instance_norm", "buffered"};
const std::set<std::string> kNormalisations = {"batch_norm1d", "batch_norm2d", "instance_norm",
                                               "layer_norm",   "group_norm",   "encoder"};
// Returns how many normalisations one forward calls. Each one amplifies the rounding errors of those before it.
int64_t normalisations(const std::vector<Layer>& layers) {
  int64_t sum = 0;
  for (const Layer& layer : layers) {
    sum += layer.repeat * (layer.kind == "group" ? normalisations(layer.children) : kNormalisations.count(layer.kind));
  }
  return sum;
}

const std::set<std::string> kByRank = {"by_rank", "by_rank_and_step"};

// ---------------------------------------------------------------- one group of rules each

Objection object_to_ranks(const Case& training, int64_t ranks) {
  const Sharding& s = training.sharding;
  if (ranks < 1 || ranks > 8) return "1 to 8 ranks";
  if (is_hybrid(training) && ranks % 2 != 0) return "a mesh of two shard groups needs an even number of ranks";
  if (s.reshard < 2) return nullptr;
  const int64_t group = is_hybrid(training) ? ranks / 2 : ranks;
  if (s.reshard >= group || group % s.reshard != 0) return "reshard_after_forward N divides the shard group";
  return nullptr;
}

Objection object_to_sharding(const Case& training) {
  const Sharding& s = training.sharding;
  const bool releases = s.strategy == "full" || s.strategy == "hybrid";
  if (s.reshard >= 1 && !releases) return "these strategies keep parameters gathered after forward";
  if (s.wrap == "auto" && !s.orig) return "automatic units need use_orig_params";
  if (s.wrap == "auto" && has_kind(training, kByRank)) {
    return "until automatic units are cut all ranks use the same parameters";
  }
  const bool differs = any_layer(training, [](const Layer& layer) { return !layer.strategy.empty(); });
  if (differs && (s.wrap != "by_hand" || is_hybrid(training))) return "units by hand have strategies of their own";
  if (training.model.deferred && has_kind(training, {"conv2d_last"})) return "a deferred tensor has no other data";
  if (is_low(training) && has_kind(training, {"dtypes"})) return "one dtype is enough to be narrowed";
  const bool coarse = s.params == "bf16" || s.reduce == "bf16";
  const int64_t most = coarse ? 0 : is_low(training) ? 2 : std::numeric_limits<int64_t>::max();
  if (normalisations(training.model.layers) > most)
    return "normalisations amplify rounding errors, one after the other more so";
  if (s.strict && has_kind(training, kByRank)) return "released so early, a unit is gathered again by each use";
  const bool local_order = s.one_communicator || s.backward_prefetch == "post";
  const bool over_hosts = training.communicator == "hosts";
  const bool in_loss = any_pass(training, [](const Pass& pass) { return pass.outside != "no"; });
  if ((local_order || (over_hosts && in_loss)) && has_kind(training, kByRank)) {
    return "here ranks use the same parameters (docs/limitations.md)";
  }
  if (s.params == "fp64" && s.buffers != "keep") return "LibTorch's normalisations take no narrower statistics";
  const bool adapts =
      training.optimizer != "sgd" && training.optimizer != "momentum" && training.optimizer != "nesterov";
  const bool ignores = any_layer(training, [](const Layer& layer) { return layer.ignored; });
  if (is_low(training) && ignores) return "LibTorch's normalisations do not mix dtypes";
  if (is_low(training) && adapts) return "an optimizer that adapts amplifies rounding errors";
  return nullptr;
}

Objection object_to_sharing(const Case& training) {
  if (!has_kind(training, {"tied"})) return nullptr;
  const bool freezes = any_layer(training, [](const Layer& layer) { return layer.frozen != "none"; });
  if (freezes && !training.model.gain) return "what is frozen may share the only weight that is trained";
  const std::string& wrap = training.sharding.wrap;
  if (wrap == "by_hand" || wrap == "siblings") return "a shared parameter would be taken by the first of two units";
  if (any_layer(training, [](const Layer& layer) { return layer.ignored; }))
    return "a shared parameter is ignored once";
  return nullptr;
}

Objection object_to_layer(const Case& training, const Layer& layer) {
  if (layer.size < 1 || layer.repeat < 1) return "sizes are positive";
  if (layer.kind != "group" && !layer.children.empty()) return "only groups have children";
  if (layer.ignored && layer.kind == "group") return "single layers are ignored";
  const std::string& wrap = training.sharding.wrap;
  if (layer.ignored && (wrap == "by_hand" || wrap == "siblings")) return "units by hand have parameters";
  if (!layer.checkpoint) return nullptr;
  bool counts = false;
  const std::vector<Layer> below = {layer};
  for_each_layer(below, [&](const Layer& one, int) { counts = counts || kWithStatistics.count(one.kind) > 0; });
  if (counts) return "recomputation updates statistics twice";
  return nullptr;
}

// Whether at least one of the layers certainly has a gradient in each step.
bool trains_always(const std::vector<Layer>& layers) {
  static const std::set<std::string> kinds = {"linear", "mlp", "layer_norm", "bare", "views", "conv1d", "lstm"};
  return std::any_of(layers.begin(), layers.end(), [](const Layer& layer) {
    if (layer.uses != "always" || layer.frozen == "all" || layer.ignored) return false;
    return layer.kind == "group" ? trains_always(layer.children) : kinds.count(layer.kind) > 0;
  });
}

Objection object_to_model(const Case& training) {
  if (training.model.batch < 2 || training.model.width < 2) return "batch norms need two rows";
  if (!training.model.gain && !trains_always(training.model.layers)) return "nothing would need a gradient";
  Objection result = nullptr;
  for_each_layer(training.model.layers, [&](const Layer& layer, int) {
    if (!result) result = object_to_layer(training, layer);
  });
  return result;
}

Objection object_to_pass(const Case& training, const Pass& pass) {
  if (pass.forwards < 1) return "backward needs a forward";
  if (!pass.all_reduce && (!is_hybrid(training) || !pass.sync)) return "only hybrid strategies have a second stage";
  const bool recomputed = any_layer(training, [](const Layer& layer) { return layer.checkpoint; });
  if (recomputed && (pass.backward == "penalty" || pass.backward == "grad")) return "no double backward of a region";
  if (is_low(training) && pass.backward == "penalty") return "second derivatives are too coarse";
  return nullptr;
}

Objection object_to_step(const Case& training, const Step& step) {
  if (step.passes.empty()) return "a step has a pass";
  if (!step.passes.back().sync || !step.passes.back().all_reduce) return "a step ends with whole gradients";
  for (const Pass& pass : step.passes) {
    if (auto result = object_to_pass(training, pass)) return result;
  }
  return nullptr;
}

Objection object_to_actions(const std::vector<std::string>& actions, bool keeps_graphs, bool has_gradients) {
  for (const std::string& name : actions) {
    const Action& action = action_of(name);
    if (keeps_graphs && !action.keeps_graphs) return "writes between forward and backward are errors";
    if (!has_gradients && action.needs_gradients) return "there are no gradients";
  }
  return nullptr;
}

Objection object_to_actions(const Case& training) {
  for (const Step& step : training.steps) {
    if (auto result = object_to_actions(step.before, false, false)) return result;
    if (auto result = object_to_actions(step.ready, false, true)) return result;
    if (auto result = object_to_actions(step.after, false, false)) return result;
    for (const Pass& pass : step.passes) {
      if (auto result = object_to_actions(pass.between, true, false)) return result;
    }
  }
  const bool loads =
      std::count(training.steps[0].before.begin(), training.steps[0].before.end(), "optimizer_state") > 0;
  if (loads && training.sharding.wrap == "auto") return "automatic units are cut before an optimizer's state is loaded";
  return nullptr;
}

Objection object_to(const Case& training) {
  if (training.steps.empty()) return "a case has a step";
  const int64_t steps = training.steps.size();
  if (training.move_after < 0 || training.move_after > steps) return "the move is after a step";
  if (auto result = object_to_ranks(training, training.ranks)) return result;
  if (training.move_after > 0) {
    if (auto result = object_to_ranks(training, training.ranks_later)) return result;
  }
  if (auto result = object_to_sharding(training)) return result;
  if (auto result = object_to_sharing(training)) return result;
  if (auto result = object_to_model(training)) return result;
  for (const Step& step : training.steps) {
    if (auto result = object_to_step(training, step)) return result;
  }
  return object_to_actions(training);
}

// Returns null, because no defect is known.
Objection defect_met(const Case&) { return nullptr; }

std::optional<std::string> text_of(Objection objection) {
  return objection ? std::optional<std::string>(std::in_place, objection) : std::nullopt;
}

}  // namespace

std::optional<std::string> objection(const Case& training) { return text_of(object_to(training)); }

double tolerance(const Case& training) {
  const Sharding& sharding = training.sharding;
  const auto uses = [&](const char* dtype) {
    return sharding.params == dtype || sharding.reduce == dtype || sharding.buffers == dtype;
  };
  if (uses("bf16")) return 0.1;
  if (uses("fp32")) return 2e-4;
  if (has_kind(training, {"dtypes"})) return 1e-4;
  return has_kind(training, kNormalisations) ? 1e-8 : 1e-10;
}

std::optional<std::string> known_defect(const Case& training) { return text_of(defect_met(training)); }

}  // namespace fsdp::fuzz
