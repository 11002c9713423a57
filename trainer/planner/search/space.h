// The configs that a search chooses from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "planner/target/cluster.h"

namespace fsdp::planner {

using Overrides = std::vector<std::string>;  // "KEY=VALUE", as after --set

// One question about a run, and its answers.
struct Dimension {
  std::string name;
  std::vector<Overrides> choices = {};  // the first is the config as it is: it has no overrides
  bool crossed = false;                 // combined with each choice of the other crossed dimensions from the start
  bool of_gathers = false;              // without effect where nothing is gathered
  bool of_activations = false;          // changes the memory that a sample adds
};

// Samples of a rank in one pass, and passes in a step.
struct MicroBatch {
  int64_t samples = 1;
  int64_t passes = 1;

  bool operator==(const MicroBatch&) const = default;
};

// An index into the choices of each dimension.
using Combination = std::vector<size_t>;

struct SearchSpace {
  std::vector<Dimension> dimensions;
  std::vector<MicroBatch> batches;  // ascending
  size_t config_batch = 0;          // the index of the config's own

  // The config as it is.
  Combination config() const { return Combination(dimensions.size(), 0); }
  // Returns the overrides that turn the config into this candidate.
  Overrides overrides(const Combination& combination, size_t batch) const;
};

struct SpaceOptions {
  std::set<std::string> fixed = {};  // keys that keep their values
  bool keeps_samples = true;         // a step has as many samples as in the config
};

// Returns the dimensions that have more than one choice for this config on this cluster: the strategy with its groups,
// recomputation, fused loss, offloading, units, the limit of gathers and prefetching. A choice that changes a fixed key
// is left out. Micro-batches are the divisors of the samples of a step in up to 8 passes or as many as in the config;
// or, if the samples may change, 1, 2, 3, 4, 6, 8, 12 and so on, in as many passes as in the config. The model is not
// known: it may refuse choices.
SearchSpace search_space(const trainer::Config& config, const Cluster& cluster, const SpaceOptions& options);

}  // namespace fsdp::planner
