#include "engine/shard_versions.h"

#include "torch_seams/shard_version.h"

namespace fsdp::engine {

void ShardVersions::invalidate_saved_values() const {
  for (const auto& flat : parameters_) {
    for (const flat::ShardedParameter& parameter : flat->parameters()) seams::bump_version(parameter.tensor);
  }
}

void ShardVersions::take_over(const ShardVersions& before) {
  used_outside_backward_ |= before.used_outside_backward_;
  if (before.written()) before.invalidate_saved_values();
  if (before.seen()) note_seen();
}

}  // namespace fsdp::engine
