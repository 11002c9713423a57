// The flat shards of a model by name, and their layouts.
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
};
std::vector<FlatShard> flat_shards(const ShardedModule& model);

// How a given layout differs from the layout here, or nothing if they are equal.
std::optional<Mismatch> difference(const std::string& name, const FlatShardLayout& given, const FlatShardLayout& here);

}  // namespace fsdp::state
