#include "engine/unit_parameters.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "torch_seams/shard_version.h"

namespace fsdp::engine {

flat::FlatParameter& UnitParameters::add(std::unique_ptr<flat::FlatParameter> flat) {
  flats_.push_back(std::move(flat));
  return *flats_.back();
}

int64_t UnitParameters::count() const {
  int64_t count = 0;
  for (const auto& flat : flats_) count += flat->layout().num_parameters();
  return count;
}

UnitParameters::Place UnitParameters::place(int64_t number) const {
  int64_t parameter = number;
  for (size_t i = 0; i < flats_.size(); ++i) {
    const int64_t count = flats_[i]->layout().num_parameters();
    if (parameter < count) return {i, parameter};
    parameter -= count;
  }
  TORCH_INTERNAL_ASSERT(false, "fsdp: a unit has no parameter ", number);
}

flat::ShardedParameter& UnitParameters::parameter(int64_t number) const {
  const Place at = place(number);
  return flats_[at.flat]->parameters()[at.parameter];
}

bool UnitParameters::shares_shards() const {
  return std::any_of(begin(), end(), [](const auto& flat) { return flat->shared().defined(); });
}

bool UnitParameters::trains() const {
  return std::any_of(begin(), end(), [](const auto& flat) { return flat->requires_grad(); });
}

bool UnitParameters::has_frozen() const {
  return std::any_of(begin(), end(),
                     [](const auto& flat) { return flat->num_trained() < flat->layout().num_parameters(); });
}

uint64_t UnitParameters::version_of_shards() const {
  uint64_t sum = 0;
  for (const auto& flat : flats_) sum += seams::version_of(flat->shard());
  return sum;
}

void UnitParameters::name_storages(const std::string& unit) const {
  for (const auto& flat : flats_) flat->name_storages(unit);
}

}  // namespace fsdp::engine
