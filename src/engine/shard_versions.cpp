#include "engine/shard_versions.h"

#include "engine/unit.h"
#include "torch_seams/shard_version.h"

namespace fsdp::engine {

uint64_t version_of_shards(const std::vector<std::unique_ptr<flat::FlatParameter>>& flat_parameters) {
  uint64_t sum = 0;
  for (const auto& flat : flat_parameters) sum += seams::version_of(flat->shard());
  return sum;
}

bool GatherOrder::holds() const { return version_ == version_of_shards(unit_.flat_parameters()); }
void GatherOrder::note() { version_ = version_of_shards(unit_.flat_parameters()); }

uint64_t ShardVersions::current() const { return version_of_shards(unit_.flat_parameters()); }

void ShardVersions::invalidate_saved_values() const {
  for (const auto& flat : unit_.flat_parameters()) {
    for (const flat::ShardedParameter& parameter : flat->parameters()) seams::bump_version(parameter.tensor);
  }
}

void ShardVersions::take_over(const ShardVersions& before) {
  used_outside_backward_ |= before.used_outside_backward_;
  if (before.written()) before.invalidate_saved_values();
  if (before.seen()) note_seen();
}

}  // namespace fsdp::engine
