#include "state/held_part.h"

#include "engine/engine.h"

namespace fsdp {

namespace {

// Of sizes, row-major.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

// Strides as they are stored: those of dimensions of size 1 say nothing.
std::vector<int64_t> stored_strides(const ShardedParameter& parameter) {
  const std::vector<int64_t> plain = contiguous_strides(parameter.sizes);
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
