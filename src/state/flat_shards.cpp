#include "state/flat_shards.h"

#include <c10/util/StringUtil.h>

#include "engine/engine.h"

namespace fsdp::state {

namespace {

FlatShardLayout layout_of(const flat::FlatParameter& flat) {
  FlatShardLayout layout;
  for (int64_t i = 0; i < flat.layout().num_parameters(); ++i) {
    layout.fqns.push_back(flat.parameters()[i].fqn);
    layout.numels.push_back(flat.layout().numel(i));
    layout.strides.push_back(flat.parameters()[i].strides);
    layout.shard_dims.push_back(flat.parameters()[i].shard_dim);
  }
  layout.rank = flat.position().rank;
  layout.factor = flat.position().factor;
  layout.shard_numel = flat.layout().shard_numel();
  layout.padding = flat.layout().padding();
  layout.cut = flat.layout().cut();
  return layout;
}

std::string parameter_at(const FlatShardLayout& layout, size_t i) {
  if (i >= layout.fqns.size()) return c10::str("without a parameter ", i);
  return c10::str("with '", layout.fqns[i], "' of ", layout.numels.at(i), " elements as parameter ", i, ", strides ",
                  at::IntArrayRef(layout.strides.at(i)), ", cut in dimension ", layout.shard_dims.at(i));
}

}  // namespace

std::vector<FlatShard> flat_shards(const KeyedModels& models) {
  std::vector<FlatShard> shards;
  for (const KeyedModel& keyed : models) {
    for (const auto& unit : keyed.model.engine().units()) {
      for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
        const flat::FlatParameter& flat = *unit->flat_parameters()[i];
        shards.push_back({keyed.prefix + unit->names().flat_parameter(i), layout_of(flat), &flat, &keyed.model});
      }
    }
  }
  return shards;
}

std::optional<Mismatch> difference(const std::string& name, const FlatShardLayout& given, const FlatShardLayout& here) {
  if (given == here) return std::nullopt;
  for (size_t i = 0; i < std::max(given.fqns.size(), here.fqns.size()); ++i) {
    if (parameter_at(given, i) != parameter_at(here, i)) {
      return Mismatch{name, parameter_at(given, i), parameter_at(here, i)};
    }
  }
  const auto shown = [](const FlatShardLayout& layout) {
    return c10::str("shard ", layout.rank, " of ", layout.factor, ", of ", layout.shard_numel,
                    " elements (padding of all: ", layout.padding, "), cut ", to_string(layout.cut));
  };
  return Mismatch{name, shown(given), shown(here)};
}

}  // namespace fsdp::state
