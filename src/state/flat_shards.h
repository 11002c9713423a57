// The flat shards of a model by their keys in local state dicts, and their layouts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flat/flat_parameter.h"
#include "fsdp/state_dict.h"

namespace fsdp::state {

struct FlatShard {
  std::string name;
  FlatShardLayout layout;
  const flat::FlatParameter* flat;
  const ShardedModule* model;
};

// A model, or a stage of a pipeline, and the beginning of its keys in local state dicts. Two stages may have units and
// leaves of the same names (their roots, and a tied parameter): each stage has a prefix of its own.
struct KeyedModel {
  const ShardedModule& model;
  std::string prefix = {};
};
using KeyedModels = std::vector<KeyedModel>;

std::vector<FlatShard> flat_shards(const KeyedModels& models);

// How a given layout differs from the layout here, or nothing if they are equal.
std::optional<Mismatch> difference(const std::string& name, const FlatShardLayout& given, const FlatShardLayout& here);

}  // namespace fsdp::state
