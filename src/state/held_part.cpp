#include "state/held_part.h"

#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "flat/dense_strides.h"
#include "state/memory_order.h"

namespace fsdp::state {

namespace {

// A parameter of which a rank has `numel` elements from `local` on, in the order of its shards. They are those from
// `whole` on of the whole parameter in the order in which that is saved.
struct Run {
  int64_t local = 0;
  int64_t whole = 0;
  int64_t numel = 0;
};

// The dimension along which a parameter is split is the outermost in memory, so each range of indices is one run.
std::vector<Run> runs_of(const flat::FlatParameter& flat, int64_t index) {
  const flat::ShardedParameter& parameter = flat.parameters()[static_cast<size_t>(index)];
  if (!parameter.part) return {{0, 0, flat.layout().numel(index)}};
  const int64_t row = flat.layout().numel(index) / parameter.part->size();
  std::vector<Run> runs;
  int64_t local = 0;
  for (const flat::IndexRange& range : parameter.part->ranges()) {
    runs.push_back({local, range.begin * row, range.size() * row});
    local += range.size() * row;
  }
  return runs;
}

std::vector<int64_t> saved_strides(const flat::ShardedParameter& parameter) {
  if (!parameter.part) return stored_strides(parameter.sizes, parameter.strides);
  const std::vector<int64_t>& sizes = parameter.part->whole_sizes;
  return stored_strides(sizes, flat::strides_with_outermost(sizes, parameter.part->dim));
}

// Numbers the ranks that hold the same elements: replicas and, of a parameter that is whole, the ranks of other parts.
void number_replicas(const engine::Unit& unit, const flat::FlatParameter& flat, HeldPart& part) {
  const std::shared_ptr<Communicator>& parts = unit.context().options.mesh.parts;
  for (const auto& group : {unit.groups().replicate, flat.is_part() ? nullptr : parts}) {
    if (!group) continue;
    part.replica = part.replica * group->size() + group->rank();
    part.replicas *= group->size();
  }
}

// Adds the parts of one parameter.
void add_parts_of(const engine::Unit& unit, const flat::FlatParameter& flat, int64_t index, bool use_orig_params,
                  std::vector<HeldPart>& to) {
  const flat::ShardedParameter& parameter = flat.parameters()[static_cast<size_t>(index)];
  const flat::ParameterSlice slice = flat.slice(index);
  HeldPart part;
  part.fqn = parameter.fqn;
  part.names = {parameter.fqn};
  part.names.insert(part.names.end(), parameter.other_fqns.begin(), parameter.other_fqns.end());
  part.sizes = parameter.part ? parameter.part->whole_sizes : parameter.sizes;
  part.strides = saved_strides(parameter);
  part.leaf = use_orig_params ? flat.original_leaves()[static_cast<size_t>(index)] : flat.flat_leaf();
  part.flat = &flat;
  part.index = index;
  number_replicas(unit, flat, part);
  for (const Run& run : runs_of(flat, index)) {
    const auto inside = [&](int64_t element) { return std::clamp(element, run.local, run.local + run.numel); };
    const int64_t begin = inside(slice.begin), end = inside(slice.end);
    part.begin = run.whole + begin - run.local;
    part.end = run.whole + end - run.local;
    part.shard_offset = begin < end ? begin - slice.begin : 0;
    part.leaf_offset = part.shard_offset + (use_orig_params ? 0 : slice.shard_offset);
    to.push_back(part);
  }
}

}  // namespace

at::Tensor HeldPart::values() const { return flat->slice_of(flat->shard(), index).narrow(0, shard_offset, numel()); }

std::pair<int64_t, int64_t> HeldPart::to_write() const {
  return {begin + numel() * replica / replicas, begin + numel() * (replica + 1) / replicas};
}

std::vector<HeldPart> held_parts(const ShardedModule& model) {
  const bool use_orig_params = model.engine().options().use_orig_params;
  std::vector<HeldPart> parts;
  for (const auto& unit : model.engine().units()) {
    for (const auto& flat : unit->flat_parameters()) {
      for (int64_t i = 0; i < flat->layout().num_parameters(); ++i) {
        add_parts_of(*unit, *flat, i, use_orig_params, parts);
      }
    }
  }
  return parts;
}

std::vector<HeldPart> whole_parameters(const ShardedModule& model) {
  std::vector<HeldPart> parameters;
  for (HeldPart& part : held_parts(model)) {
    if (!parameters.empty() && parameters.back().fqn == part.fqn) continue;
    if (part.flat->is_part()) part.strides.clear();
    parameters.push_back(std::move(part));
  }
  return parameters;
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
