// Where a number of a cluster comes from.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::planner {

enum class Provenance : uint8_t {
  kSpecified,   // in a data sheet or in the source of a library
  kMeasured,    // by itself, by anyone
  kCalibrated,  // so that plans agree with whole runs
  kGuess,
};

// Returns "specified", "measured", "calibrated" or "guess".
std::string to_string(Provenance provenance);
// Returns nothing for any other text.
std::optional<Provenance> find_provenance(const std::string& text);
std::vector<std::string> provenance_names();

// By path of the key ("device.matmul_efficiency", cluster_keys.h). Numbers of a file that says nothing about them are
// missing.
using Provenances = std::map<std::string, Provenance>;

}  // namespace fsdp::planner
