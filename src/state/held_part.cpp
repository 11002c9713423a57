#include "state/held_part.h"

#include <c10/util/strides.h>

#include "engine/engine.h"

namespace fsdp {

namespace {

// Strides as they are stored: those of dimensions of size 1 say nothing.
std::vector<int64_t> stored_strides(const ShardedParameter& parameter) {
  const c10::DimVector plain = c10::contiguous_strides(parameter.sizes);
  for (size_t i = 0; i < plain.size(); ++i) {
    if (parameter.sizes[i] != 1 && parameter.strides[i] != plain[i]) {
      return parameter.strides;
    }
  }
  return {};
}

HeldPart part_of(const Unit& unit, const FlatParameter& flat, int64_t index, bool use_orig_params) {
  const ShardedParameter& parameter = flat.parameters()[index];
  const ParameterSlice slice = flat.slice(index);
  HeldPart part;
  part.fqn = parameter.fqn;
  part.sizes = parameter.sizes;
  part.strides = stored_strides(parameter);
  part.begin = slice.begin;
  part.end = slice.end;
  part.values = flat.slice_of(flat.shard(), index);
  part.leaf = use_orig_params ? flat.original_leaves()[index] : flat.flat_leaf();
  part.leaf_offset = use_orig_params ? 0 : part.values.storage_offset() - flat.shard().storage_offset();
  if (const auto& replicate = unit.groups().replicate) {
    part.replica = replicate->rank();
    part.replicas = replicate->size();
  }
  return part;
}

}  // namespace

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

}  // namespace fsdp
