// The only table of the keys of cluster files. Reading, printing, docs/cluster.md and the provenances of named clusters
// are derived from it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/target/cluster.h"

namespace fsdp::planner {

// The clusters in which a key has a meaning.
enum class KeyScope : uint8_t {
  kAll,
  kDevices,  // ranks have devices
  kCpus,     // ranks compute on CPUs, whose times the file has
  kTimes,    // either of these
};

struct ClusterKey {
  std::string path;  // "links.inside.bandwidth": the member "bandwidth" of the object "inside" of the object "links"
  std::string meaning;
  std::string accepted;
  // Whether a device of one's own needs it, or times of CPUs. Otherwise it has the default of an empty Cluster.
  bool needed = false;
  // For numbers: where those of known devices come from, if their entry says nothing else (KnownDevice::guesses).
  std::optional<Provenance> usual = std::nullopt;
  // Stores a value. Returns why it is unsuitable ("is out of range"), or an empty text.
  std::function<std::string(Cluster&, const nlohmann::json&)> set;
  std::function<nlohmann::ordered_json(const Cluster&)> get;
};

// In the order of files.
const std::vector<ClusterKey>& cluster_keys();
// Returns null if there is no such key.
const ClusterKey* find_cluster_key(const std::string& path);
KeyScope scope_of(const ClusterKey& key);
// Whether it has a meaning in this cluster.
bool is_of(const ClusterKey& key, const Cluster& cluster);

// Returns the provenances of all numbers of a known device. `guesses`, `calibrated`: paths that differ from the usual.
Provenances usual_provenances(const std::vector<std::string>& guesses, const std::vector<std::string>& calibrated);

}  // namespace fsdp::planner
