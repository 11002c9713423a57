#include "planner/target/cluster.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "config/errors.h"
#include "planner/target/cluster_keys.h"
#include "planner/target/known_devices.h"

namespace fsdp::planner {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  std::vector<std::string> known;
  for (const KnownDevice& device : known_devices()) known.push_back(device.profile.name);
  throw trainer::ConfigError(c10::str("--cluster \"", name, "\": ", why,
                                      "; accepted: RANKSxDEVICE for one host or HOSTSxRANKSxDEVICE, such as 8xh100 or "
                                      "64x8xa100-80, where the device is cpu, ",
                                      c10::Join(", ", known), "; or a FILE.json (fsdp plan --print-cluster 8xh100)"));
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts{""};
  // An x begins a new part only after a number: names of devices may contain one.
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string& last = parts.back();
    const bool after_number =
        !last.empty() && std::all_of(last.begin(), last.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (text[i] == 'x' && after_number) {
      parts.emplace_back();
    } else {
      parts.back() += text[i];
    }
  }
  return parts;
}

int count_of(const std::string& name, const std::string& part, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size() || value < 1 || value > most) {
    refuse(name, c10::str("\"", part, "\" is not a number from 1 to ", most));
  }
  return value;
}

}  // namespace

std::string Cluster::text() const {
  const std::string host = c10::str(ranks_per_host, " x ", device ? device->title : "CPU");
  return c10::str(hosts == 1 ? "" : c10::str(hosts, " hosts of "), host, file.empty() ? "" : " (" + file + ")");
}

void use_device(const KnownDevice& known, Cluster& cluster) {
  cluster.device = known.profile;
  cluster.speed = known.speed;
  cluster.links = known.host_links(cluster.ranks_per_host);
  cluster.provenances = usual_provenances(known.guesses, known.calibrated);
}

Cluster parse_cluster(const std::string& name) {
  const std::vector<std::string> parts = split(name);
  if (parts.size() < 2 || parts.size() > 3) refuse(name, "it does not name the number of ranks and the device");
  Cluster cluster;
  if (parts.size() == 3) cluster.hosts = count_of(name, parts.front(), 65536);
  cluster.ranks_per_host = count_of(name, parts[parts.size() - 2], 1024);
  if (parts.back() == "cpu") return cluster;
  const KnownDevice* known = find_known_device(parts.back());
  if (known == nullptr) refuse(name, c10::str("no device is named \"", parts.back(), "\""));
  use_device(*known, cluster);
  return cluster;
}

}  // namespace fsdp::planner
