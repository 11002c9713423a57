#include "engine/membership.h"

#include "engine/unit.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::engine {

void check_membership(const Unit& unit) {
  for (const auto& flat : unit.flat_parameters()) {
    for (const flat::ShardedParameter& parameter : flat->parameters()) check_membership(unit, parameter);
  }
}

void check_membership(const Unit& unit, const flat::ShardedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  const bool member = seams::has_sharded_key(tensor) && seams::storage_owner(tensor) == parameter.owner.get();
  TORCH_CHECK(
      member, "fsdp: ", unit.where(), ": parameter '", parameter.fqn,
      "' has left the engine: its data was replaced after fully_shard (assignment to .data, a conversion of "
      "the module with to(), double() or half(), or a state dict loaded by assignment). Convert and load before "
      "fully_shard, or write inside ShardedModule::with_full_params");
}

}  // namespace fsdp::engine
