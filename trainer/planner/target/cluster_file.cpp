#include "planner/target/cluster_file.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "config/config_schema.h"
#include "config/edit_distance.h"
#include "config/errors.h"
#include "config/json_object_file.h"
#include "formats/common/json_text.h"
#include "planner/target/cluster_keys.h"

namespace fsdp::planner {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using trainer::ConfigError;

constexpr int kSchemaVersion = 1;
// Members beside those of the table.
constexpr const char* kVersion = "schema_version";
constexpr const char* kDevice = "device";
constexpr const char* kCpu = "cpu";
constexpr const char* kOverrides = "device_overrides";
constexpr const char* kProvenance = "provenance";

const std::string kToStartFrom = "`fsdp plan --print-cluster 8xh100` prints a file to start from";
const std::string kToMeasure = "`fsdp plan --calibrate FILE --nproc-per-node N` measures these numbers";

std::vector<std::string> names_of_devices() {
  std::vector<std::string> names = {kCpu};
  for (const KnownDevice& device : known_devices()) names.push_back(device.profile.name);
  return names;
}

// "; the nearest known one is "spread"", or nothing.
std::string hint_for(const std::string& name, const std::vector<std::string>& known) {
  const std::optional<std::string> similar = trainer::similar_name(name.substr(0, 100), known);
  return similar ? "; the nearest known one is \"" + *similar + "\"" : "";
}

// The names that the object at this path may have, "" for the whole file.
std::vector<std::string> members_at(const std::string& path) {
  const std::string prefix = path.empty() ? "" : path + ".";
  std::vector<std::string> members;
  if (path.empty()) members = {kVersion, kOverrides, kProvenance};
  for (const ClusterKey& key : cluster_keys()) {
    if (key.path.rfind(prefix, 0) != 0) continue;
    const std::string rest = key.path.substr(prefix.size());
    const std::string member = rest.substr(0, rest.find('.'));
    if (members.empty() || members.back() != member) members.push_back(member);
  }
  return members;
}

std::string path_of(const std::string& section, const std::string& member) {
  return section.empty() ? member : section + "." + member;
}

// Reads one file into a cluster.
class ClusterReader {
 public:
  ClusterReader(const json& file, std::string source) : file_(file), source_(std::move(source)) {
    cluster_.file = source_;
  }
  Cluster read();

 private:
  [[noreturn]] void refuse(const std::string& key, const json& value, const std::string& why,
                           const std::string& accepted) const;
  const json& member(const char* name, const std::string& accepted) const;
  void check_version() const;
  void read_device();
  void read_known_device(const std::string& name);
  void read_section(const json& object, const std::string& section, const std::string& written);
  void read_key(const ClusterKey& key, const json& value, const std::string& written);
  void read_provenances();
  void check_complete() const;
  void check_combinations() const;

  const json& file_;
  std::string source_;
  Cluster cluster_;
  bool own_device_ = false;
  std::set<std::string> given_;  // paths
};

void ClusterReader::refuse(const std::string& key, const json& value, const std::string& why,
                           const std::string& accepted) const {
  throw ConfigError(
      c10::str(source_, ": key \"", key, "\": ", formats::json_text(value), " ", why, "; accepted: ", accepted));
}

const json& ClusterReader::member(const char* name, const std::string& accepted) const {
  if (file_.contains(name)) return file_[name];
  throw ConfigError(c10::str(source_, ": key \"", name, "\" is missing; accepted: ", accepted, "; ", kToStartFrom));
}

void ClusterReader::check_version() const {
  const std::string accepted = std::to_string(kSchemaVersion);
  const json& version = member(kVersion, accepted);
  if (version != kSchemaVersion) refuse(kVersion, version, "is another version of this format", accepted);
}

// The number of ranks comes first: a host may have a NIC for each.
void ClusterReader::read_device() {
  const std::string accepted = trainer::join_or(names_of_devices()) + ", or an object with all numbers of a device";
  const json& device = member(kDevice, accepted);
  if (file_.contains("ranks_per_host"))
    read_key(*find_cluster_key("ranks_per_host"), file_["ranks_per_host"], "ranks_per_host");
  if (device.is_object()) {
    own_device_ = true;
    cluster_.device.emplace();
    if (file_.contains(kOverrides)) {
      throw ConfigError(c10::str(source_, ": key \"", kOverrides,
                                 "\" changes a device that is given by its name; put "
                                 "these numbers into the object \"",
                                 kDevice, "\""));
    }
    return;
  }
  if (!device.is_string()) refuse(kDevice, device, "is neither a string nor an object", accepted);
  read_known_device(device.get<std::string>());
}

void ClusterReader::read_known_device(const std::string& name) {
  if (name == kCpu) {
    if (file_.contains(kCpu)) cluster_.host_speed.emplace();
    return;
  }
  const KnownDevice* known = find_known_device(name);
  const std::vector<std::string> names = names_of_devices();
  if (known == nullptr)
    refuse(kDevice, name, "is not the name of a device" + hint_for(name, names), trainer::join_or(names));
  use_device(*known, cluster_);
}

void ClusterReader::read_section(const json& object, const std::string& section, const std::string& written) {
  const std::vector<std::string> members = members_at(section);
  if (!object.is_object()) refuse(written, object, "is not an object", "an object with " + c10::Join(", ", members));
  for (const auto& [name, value] : object.items()) {
    const std::string path = path_of(section, name), shown = path_of(written, name);
    if (section.empty() && (name == kVersion || name == kProvenance)) continue;
    if (section.empty() && name == kOverrides) {
      read_section(value, kDevice, shown);
    } else if (section.empty() && name == kDevice && !own_device_) {
      continue;
    } else if (const ClusterKey* key = find_cluster_key(path)) {
      read_key(*key, value, shown);
    } else if (std::count(members.begin(), members.end(), name) > 0) {
      read_section(value, path, shown);
    } else {
      throw ConfigError(c10::str(source_, ": unknown key ", formats::quoted_name(shown), hint_for(name, members),
                                 "; known: ", c10::Join(", ", members)));
    }
  }
}

void ClusterReader::read_key(const ClusterKey& key, const json& value, const std::string& written) {
  if (!is_of(key, cluster_)) {
    const char* const where = scope_of(key) == KeyScope::kCpus ? "\" is not \"cpu\"" : "\" is \"cpu\"";
    const char* const unless = scope_of(key) == KeyScope::kTimes ? ", unless there is the object \"cpu\"" : "";
    throw ConfigError(c10::str(source_, ": key \"", written, "\" has no meaning where \"", kDevice, where, unless));
  }
  if (written == path_of(kOverrides, "name")) {
    throw ConfigError(c10::str(source_, ": key \"", written, "\": the name of a known device stays; give a whole \"",
                               kDevice, "\" of your own; ", kToStartFrom));
  }
  const std::string complaint = key.set(cluster_, value);
  if (!complaint.empty()) refuse(written, value, complaint, key.accepted);
  given_.insert(key.path);
  cluster_.provenances.erase(key.path);
}

void ClusterReader::read_provenances() {
  if (!file_.contains(kProvenance)) return;
  const json& object = file_[kProvenance];
  if (!object.is_object()) refuse(kProvenance, object, "is not an object", "an object from paths of keys to a word");
  std::vector<std::string> paths;
  for (const ClusterKey& key : cluster_keys()) {
    if (key.usual) paths.push_back(key.path);
  }
  for (const auto& [path, word] : object.items()) {
    const std::string written = path_of(kProvenance, path);
    if (std::count(paths.begin(), paths.end(), path) == 0) {
      throw ConfigError(c10::str(source_, ": key \"", kProvenance, "\": ", formats::quoted_name(path),
                                 " is not the path of a number, such as \"device.memory\"", hint_for(path, paths)));
    }
    if (given_.count(path) == 0) {
      throw ConfigError(c10::str(source_, ": key \"", written, "\": the file does not give this number"));
    }
    const auto provenance = word.is_string() ? find_provenance(word.get<std::string>()) : std::nullopt;
    if (!provenance) refuse(written, word, "is not an accepted value", trainer::join_or(provenance_names()));
    cluster_.provenances[path] = *provenance;
  }
}

void ClusterReader::check_complete() const {
  std::vector<std::string> missing;
  for (const ClusterKey& key : cluster_keys()) {
    const bool is_given = scope_of(key) == KeyScope::kDevices && !own_device_;  // by the name of the device
    if (key.needed && is_of(key, cluster_) && !is_given && given_.count(key.path) == 0) {
      missing.push_back("\"" + key.path + "\"");
    }
  }
  if (missing.empty()) return;
  throw ConfigError(c10::str(source_, ": missing: ", c10::Join(", ", missing),
                             own_device_ ? "; a device of one's own needs all its numbers; " : "; ",
                             cluster_.host_speed ? kToMeasure : kToStartFrom));
}

void ClusterReader::check_combinations() const {
  if (cluster_.host_speed && cluster_.hosts > 1) {
    refuse("hosts", cluster_.hosts, "is more than one host, but the object \"cpu\" has no times between hosts", "1");
  }
  if (cluster_.host_speed && cluster_.ranks_per_host > 1 && cluster_.host_speed->exchanges.empty()) {
    refuse("cpu.exchanges", json::array(), "has no times for several ranks", "times of all collectives; " + kToMeasure);
  }
  if (!cluster_.device) return;
  if (cluster_.device->context >= cluster_.device->memory) {
    throw ConfigError(c10::str(source_, ": key \"device.context\": ", cluster_.device->context,
                               " bytes leave nothing of \"device.memory\", ", cluster_.device->memory, " bytes"));
  }
  const auto& protocols = cluster_.links.protocols;
  const bool only_ll128 = !protocols[0] && protocols[1] && !protocols[2];
  if (only_ll128 && cluster_.links.inside == InsideLink::kPcie) {
    throw ConfigError(source_ + ": key \"nccl.protocols\": LL128 does not work over PCIe; add LL or Simple");
  }
}

Cluster ClusterReader::read() {
  check_version();
  read_device();
  read_section(file_, "", "");
  check_complete();
  read_provenances();
  check_combinations();
  return std::move(cluster_);
}

bool is_file(const std::string& text) {
  return text.find('/') != std::string::npos || (text.size() > 5 && text.rfind(".json") == text.size() - 5);
}

// The object that holds the last member of a path, and that member's name.
std::pair<ordered_json*, std::string> place_of(ordered_json& file, const std::string& path) {
  ordered_json* object = &file;
  size_t begin = 0;
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    object = &(*object)[path.substr(begin, dot - begin)];
    begin = dot + 1;
  }
  return {object, path.substr(begin)};
}

}  // namespace

Cluster read_cluster(const std::string& name_or_file) {
  if (!is_file(name_or_file)) return parse_cluster(name_or_file);
  return read_cluster(trainer::read_json_object(name_or_file), name_or_file);
}

Cluster read_cluster(const json& file, const std::string& source) { return ClusterReader(file, source).read(); }

ordered_json cluster_json(const Cluster& cluster) {
  ordered_json file = {{kVersion, kSchemaVersion}};
  if (!cluster.device) file[kDevice] = kCpu;
  for (const ClusterKey& key : cluster_keys()) {
    if (!is_of(key, cluster)) continue;
    const auto [object, member] = place_of(file, key.path);
    (*object)[member] = key.get(cluster);
  }
  if (!cluster.provenances.empty()) file[kProvenance] = ordered_json::object();
  for (const ClusterKey& key : cluster_keys()) {
    const auto found = cluster.provenances.find(key.path);
    if (found != cluster.provenances.end()) file[kProvenance][key.path] = to_string(found->second);
  }
  return file;
}

}  // namespace fsdp::planner
