// The parameters of a unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flat/flat_parameter.h"

namespace fsdp::engine {

// The FlatParameters of a unit, in order. Parameters are numbered from 0 through all of them.
class UnitParameters {
 public:
  using Flats = std::vector<std::unique_ptr<flat::FlatParameter>>;

  // -- the FlatParameters --
  Flats::const_iterator begin() const { return flats_.begin(); }
  Flats::const_iterator end() const { return flats_.end(); }
  size_t size() const { return flats_.size(); }
  const Flats::value_type& operator[](size_t flat) const { return flats_[flat]; }
  const Flats::value_type& at(size_t flat) const { return flats_.at(flat); }
  const Flats::value_type& front() const { return flats_.front(); }
  const Flats::value_type& back() const { return flats_.back(); }
  flat::FlatParameter& add(std::unique_ptr<flat::FlatParameter> flat);
  void clear() { flats_.clear(); }

  // -- the parameters --
  int64_t count() const;
  struct Place {
    size_t flat;
    int64_t parameter;  // within the FlatParameter
  };
  // Returns the place of the parameter with this number, which must be less than count().
  Place place(int64_t number) const;
  flat::ShardedParameter& parameter(int64_t number) const;

  // -- all of them --
  // Whether ranks read each other's shards in place.
  bool shares_shards() const;
  // Whether any of the parameters gets gradients, and whether any does not.
  bool trains() const;
  bool has_frozen() const;
  // Changes with each write to a shard that LibTorch counts.
  uint64_t version_of_shards() const;
  // Names the memory of all of them after the unit, for error messages.
  void name_storages(const std::string& unit) const;

 private:
  Flats flats_;
};

}  // namespace fsdp::engine
