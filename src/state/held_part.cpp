#include "state/held_part.h"

#include "engine/engine.h"
#include "state/memory_order.h"

namespace fsdp::state {

namespace {

HeldPart part_of(const engine::Unit& unit, const flat::FlatParameter& flat, int64_t index, bool use_orig_params) {
  const flat::ShardedParameter& parameter = flat.parameters()[index];
  const flat::ParameterSlice slice = flat.slice(index);
  HeldPart part;
  part.fqn = parameter.fqn;
  part.names = {parameter.fqn};
  part.names.insert(part.names.end(), parameter.other_fqns.begin(), parameter.other_fqns.end());
  part.sizes = parameter.sizes;
  part.strides = stored_strides(parameter.sizes, parameter.strides);
  part.begin = slice.begin;
  part.end = slice.end;
  part.leaf = use_orig_params ? flat.original_leaves()[index] : flat.flat_leaf();
  part.leaf_offset = use_orig_params ? 0 : slice.shard_offset;
  part.flat = &flat;
  part.index = index;
  if (const auto& replicate = unit.groups().replicate) {
    part.replica = replicate->rank();
    part.replicas = replicate->size();
  }
  return part;
}

}  // namespace

at::Tensor HeldPart::values() const { return flat->slice_of(flat->shard(), index); }

std::pair<int64_t, int64_t> HeldPart::to_write() const {
  return {begin + numel() * replica / replicas, begin + numel() * (replica + 1) / replicas};
}

std::vector<HeldPart> held_parts(const ShardedModule& model) {
  const bool use_orig_params = model.engine().options().use_orig_params;
  std::vector<HeldPart> parts;
  for (const auto& unit : model.engine().units()) {
    for (const auto& flat : unit->flat_parameters()) {
      for (int64_t i = 0; i < flat->layout().num_parameters(); ++i) {
        parts.push_back(part_of(*unit, *flat, i, use_orig_params));
      }
    }
  }
  return parts;
}

std::vector<HeldPart> with_aliases(std::vector<HeldPart> parts, const Aliases& aliases) {
  for (const auto& [alias, fqn] : aliases) {
    for (HeldPart& part : parts) {
      if (part.fqn == fqn) part.names.push_back(alias);
    }
  }
  return parts;
}

}  // namespace fsdp::state
