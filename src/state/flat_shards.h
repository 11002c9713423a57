// The flat shards of a model by name, and how they are laid out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flat/flat_parameter.h"
#include "fsdp/state_dict.h"

namespace fsdp {

struct FlatShard {
  std::string name;
  FlatShardLayout layout;
  const FlatParameter* flat;
};
std::vector<FlatShard> flat_shards(const ShardedModule& model);

// In what a layout that is given differs from that here, if it does.
std::optional<Mismatch> difference(const std::string& name, const FlatShardLayout& given, const FlatShardLayout& here);

}  // namespace fsdp
