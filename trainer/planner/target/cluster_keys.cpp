#include "planner/target/cluster_keys.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "config/config_schema.h"
#include "planner/target/cluster_lists.h"
#include "planner/target/host_lists.h"
#include "planner/target/name_index.h"
#include "planner/target/quantity.h"

namespace fsdp::planner {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using trainer::Range;

constexpr double kNoLimit = std::numeric_limits<double>::max();
constexpr Range kPartRange{.lower = 0, .upper = 1, .lower_open = true};
constexpr Range kShareRange{.lower = 0, .upper = 1, .upper_open = true};
constexpr Range kCountRange{.lower = 1, .upper = 1e6};
// Bytes per second below 1 MB/s, and rates below 1 GFLOP/s, were meant in another unit.
constexpr Range kBandwidthRange{.lower = 1e6, .upper = 1e15};
constexpr Range kRateRange{.lower = 1e9, .upper = 1e18};
constexpr Range kTimeRange{.lower = 0, .upper = 1};
constexpr Range kMemoryRange{.lower = 0, .upper = 1e15};
constexpr Range kPositiveMemory{.lower = 1, .upper = 1e15};

// A unit and the accepted numbers.
struct NumberKind {
  Unit unit = Unit::kNone;
  Range range;
};
constexpr NumberKind kEfficiency{Unit::kNone, kPartRange};
constexpr NumberKind kShare{Unit::kNone, kShareRange};
constexpr NumberKind kCount{Unit::kNone, kCountRange};
constexpr NumberKind kBytesPerSecond{Unit::kBytesPerSecond, kBandwidthRange};
constexpr NumberKind kFlopsPerSecond{Unit::kFlopsPerSecond, kRateRange};
constexpr NumberKind kSeconds{Unit::kSeconds, kTimeRange};
constexpr NumberKind kBytes{Unit::kBytes, kMemoryRange};
constexpr NumberKind kPositiveBytes{Unit::kBytes, kPositiveMemory};

std::string limits_text(const NumberKind& kind) {
  const auto text = [&](double limit) {
    const ordered_json value = quantity_json(limit, kind.unit);
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  std::string limits = c10::str(kind.range.lower_open ? "> " : ">= ", text(kind.range.lower));
  if (kind.range.upper < kNoLimit)
    limits += c10::str(" and ", kind.range.upper_open ? "< " : "<= ", text(kind.range.upper));
  return limits;
}

// `member`: returns a reference to the number in a Cluster.
template <typename Member>
ClusterKey number_key(const std::string& path, const NumberKind& kind, bool needed, std::optional<Provenance> usual,
                      const std::string& meaning, Member member) {
  using Number = std::remove_cvref_t<decltype(member(std::declval<Cluster&>()))>;
  const bool whole = std::is_integral_v<Number>;
  const std::string noun = whole && kind.unit == Unit::kNone ? "a whole number" : accepted_quantity(kind.unit);
  return {.path = path,
          .meaning = meaning,
          .accepted = c10::str(noun, ", ", limits_text(kind)),
          .needed = needed,
          .usual = usual,
          .set = [=](Cluster& cluster, const json& value) -> std::string {
            const Quantity quantity = quantity_of(value, kind.unit);
            if (!quantity.value) return quantity.complaint;
            if (!std::isfinite(*quantity.value) || !kind.range.contains(*quantity.value)) return "is out of range";
            const bool has_fraction = std::trunc(*quantity.value) != *quantity.value;
            if (whole && kind.unit == Unit::kNone && has_fraction) return "is not a whole number";
            member(cluster) = static_cast<Number>(*quantity.value);
            return "";
          },
          .get = [=](const Cluster& cluster) -> ordered_json {
            return quantity_json(static_cast<double>(member(cluster)), kind.unit);
          }};
}

template <typename Member>
ClusterKey text_key(const std::string& path, bool needed, const std::string& meaning, Member member) {
  return {.path = path,
          .meaning = meaning,
          .accepted = "a string that is not empty",
          .needed = needed,
          .set = [=](Cluster& cluster, const json& value) -> std::string {
            if (!value.is_string() || value.get<std::string>().empty()) return "is not such a string";
            member(cluster) = value.get<std::string>();
            return "";
          },
          .get = [=](const Cluster& cluster) -> ordered_json { return member(cluster); }};
}

// `names`: of the enumerators, in their order.
template <typename Member>
ClusterKey choice_key(const std::string& path, bool needed, const std::vector<std::string>& names,
                      const std::string& meaning, Member member) {
  using Enum = std::remove_cvref_t<decltype(member(std::declval<Cluster&>()))>;
  return {
      .path = path,
      .meaning = meaning,
      .accepted = trainer::join_or(names),
      .needed = needed,
      .set = [=](Cluster& cluster, const json& value) -> std::string {
        const auto index = name_index(names, value);
        if (!index) return "is not an accepted value";
        member(cluster) = static_cast<Enum>(*index);
        return "";
      },
      .get = [=](const Cluster& cluster) -> ordered_json { return names.at(static_cast<size_t>(member(cluster))); }};
}

std::vector<ClusterKey> keys_of_hosts() {
  return {
      number_key("hosts", {Unit::kNone, {.lower = 1, .upper = 65536}}, false, std::nullopt, "Hosts of the run.",
                 [](auto& cluster) -> auto& { return cluster.hosts; }),
      number_key("ranks_per_host", {Unit::kNone, {.lower = 1, .upper = 1024}}, true, std::nullopt,
                 "Ranks of each host; each has a device of its own, unless the device is `cpu`.",
                 [](auto& cluster) -> auto& { return cluster.ranks_per_host; }),
      {.path = "host_memory",
       .meaning =
           "Memory of one host, for all its ranks; null: no verdict about hosts. `--host-memory` goes before it.",
       .accepted = c10::str(accepted_quantity(Unit::kBytes), ", ", limits_text(kPositiveBytes), ", or null"),
       .set = [](Cluster& cluster, const json& value) -> std::string {
         cluster.host_memory = std::nullopt;
         if (value.is_null()) return "";
         const Quantity quantity = quantity_of(value, Unit::kBytes);
         if (!quantity.value) return quantity.complaint;
         if (!kPositiveMemory.contains(*quantity.value)) return "is out of range";
         cluster.host_memory = static_cast<int64_t>(*quantity.value);
         return "";
       },
       .get = [](const Cluster& cluster) -> ordered_json {
         if (!cluster.host_memory) return nullptr;
         return quantity_json(static_cast<double>(*cluster.host_memory), Unit::kBytes);
       }},
  };
}

std::vector<ClusterKey> keys_of_device() {
  using enum Provenance;
  return {
      text_key("device.name", true, "A short name.", [](auto& cluster) -> auto& { return cluster.device->name; }),
      text_key("device.title", true, "The name in texts.",
               [](auto& cluster) -> auto& { return cluster.device->title; }),
      number_key("device.memory", kPositiveBytes, true, kMeasured, "The total that CUDA reports.",
                 [](auto& cluster) -> auto& { return cluster.device->memory; }),
      number_key("device.context", kBytes, false, kGuess,
                 "Taken by a process before it allocates anything: CUDA's context and loaded kernels.",
                 [](auto& cluster) -> auto& { return cluster.device->context; }),
      number_key("device.matmul_workspace", kBytes, true, kSpecified,
                 "The workspace of cuBLAS for each stream that multiplies: 32 MiB from Hopper on, before 8.125 MiB.",
                 [](auto& cluster) -> auto& { return cluster.device->matmul_workspace; }),
      number_key("device.float32", kFlopsPerSecond, true, kSpecified, "The peak rate of products in fp32.",
                 [](auto& cluster) -> auto& { return cluster.speed.float32; }),
      number_key("device.tensor_float32", kFlopsPerSecond, true, kSpecified,
                 "The peak rate of products of fp32 by tensor cores.",
                 [](auto& cluster) -> auto& { return cluster.speed.tensor_float32; }),
      number_key("device.float16", kFlopsPerSecond, true, kSpecified, "The peak rate of dense products in fp16.",
                 [](auto& cluster) -> auto& { return cluster.speed.float16; }),
      number_key("device.bfloat16", kFlopsPerSecond, true, kSpecified, "The peak rate of dense products in bf16.",
                 [](auto& cluster) -> auto& { return cluster.speed.bfloat16; }),
      number_key("device.float8", {Unit::kFlopsPerSecond, {.lower = 0, .upper = 1e18}}, false, kSpecified,
                 "The peak rate of dense products in fp8; 0: the device has none.",
                 [](auto& cluster) -> auto& { return cluster.speed.float8; }),
      number_key("device.multiprocessors", kCount, true, kSpecified, "Streaming multiprocessors.",
                 [](auto& cluster) -> auto& { return cluster.speed.multiprocessors; }),
      number_key("device.memory_bandwidth", kBytesPerSecond, true, kSpecified, "Bytes read and written.",
                 [](auto& cluster) -> auto& { return cluster.speed.memory_bandwidth; }),
      number_key("device.memory_efficiency", kEfficiency, true, kGuess,
                 "The part of memory_bandwidth that a kernel of very many bytes reaches.",
                 [](auto& cluster) -> auto& { return cluster.speed.memory_efficiency; }),
      number_key("device.memory_half_bytes", kPositiveBytes, false, kGuess,
                 "Bytes at which a kernel reaches half of that.",
                 [](auto& cluster) -> auto& { return cluster.speed.memory_half_bytes; }),
      number_key("device.matmul_efficiency", kEfficiency, true, kGuess,
                 "The part of the peak rate that a large product of a good shape reaches.",
                 [](auto& cluster) -> auto& { return cluster.speed.matmul_efficiency; }),
      number_key("device.attention_forward", kEfficiency, true, kMeasured,
                 "The part of the peak rate that fused attention reaches; causal attention counts half of all FLOPs.",
                 [](auto& cluster) -> auto& { return cluster.speed.attention_forward; }),
      number_key("device.attention_backward", kEfficiency, true, kMeasured, "The same of its backward.",
                 [](auto& cluster) -> auto& { return cluster.speed.attention_backward; }),
      number_key("device.fixed_time", kSeconds, false, kGuess, "Time of a kernel that does nothing.",
                 [](auto& cluster) -> auto& { return cluster.speed.fixed_seconds; }),
      products_key("device.measured_products"),
  };
}

std::vector<ClusterKey> keys_of_links() {
  using enum Provenance;
  return {
      choice_key("links.inside.kind", true, {"nvlink", "pcie"}, "The link between the devices of a host.",
                 [](auto& cluster) -> auto& { return cluster.links.inside; }),
      number_key("links.inside.bandwidth", kBytesPerSecond, true, kMeasured,
                 "Bus bandwidth of a ring of large messages inside a host, one way.",
                 [](auto& cluster) -> auto& { return cluster.links.ring; }),
      number_key("links.inside.ll_limit", kBytesPerSecond, true, kSpecified,
                 "The most that NCCL's protocol LL reaches inside a host.",
                 [](auto& cluster) -> auto& { return cluster.links.ll_limit; }),
      number_key("links.inside.share", kShare, false, kGuess,
                 "The part of a device that a collective takes from kernels while it runs inside a host.",
                 [](auto& cluster) -> auto& { return cluster.links.inside_share; }),
      number_key("links.network.nic_bandwidth", kBytesPerSecond, true, kSpecified, "Of one NIC, one way.",
                 [](auto& cluster) -> auto& { return cluster.links.nic; }),
      number_key("links.network.nics", kCount, true, kSpecified, "NICs of a host.",
                 [](auto& cluster) -> auto& { return cluster.links.nics; }),
      number_key("links.network.efficiency", kEfficiency, false, kGuess, "The part of it that large messages reach.",
                 [](auto& cluster) -> auto& { return cluster.links.nic_efficiency; }),
      number_key("links.network.oversubscription", {Unit::kNone, {.lower = 1, .upper = 1000}}, false, kGuess,
                 "How often the network's upper levels promise their bandwidth.",
                 [](auto& cluster) -> auto& { return cluster.links.oversubscription; }),
      number_key("links.network.latency", kSeconds, false, kGuess, "Of a hop, beyond NCCL's own figure.",
                 [](auto& cluster) -> auto& { return cluster.links.network_latency; }),
      number_key("links.network.share", kShare, false, kGuess,
                 "As links.inside.share, for groups of one rank of each host; the least for others across hosts.",
                 [](auto& cluster) -> auto& { return cluster.links.network_share; }),
      number_key("links.host.bandwidth", kBytesPerSecond, true, kMeasured,
                 "Between a device and pinned memory, one way.",
                 [](auto& cluster) -> auto& { return cluster.links.host_copy; }),
      curves_key("links.curves"),
  };
}

std::vector<ClusterKey> keys_of_nccl() {
  using enum Provenance;
  return {
      number_key("nccl.memory_on_host", kBytes, false, kGuess, "Device memory of a communicator inside a host.",
                 [](auto& cluster) -> auto& { return cluster.communicator_on_host; }),
      number_key("nccl.memory_across_hosts", kBytes, false, kGuess, "Device memory of a communicator across hosts.",
                 [](auto& cluster) -> auto& { return cluster.communicator_across_hosts; }),
      number_key("nccl.launch", kSeconds, false, kGuess, "Time until a collective's kernels run on all ranks.",
                 [](auto& cluster) -> auto& { return cluster.links.launch; }),
      protocols_key("nccl.protocols"),
      trees_key("nccl.trees"),
      choice_key("nccl.host_cpu", false, {"intel", "amd"}, "The CPU of hosts, on which NCCL's model depends.",
                 [](auto& cluster) -> auto& { return cluster.links.host; }),
  };
}

std::vector<ClusterKey> keys_of_times() {
  using enum Provenance;
  return {
      number_key("host_per_kernel", kSeconds, false, kGuess,
                 "Time of the host thread for each kernel that it issues; on CPUs, beside the kernel's own.",
                 [](auto& cluster) -> auto& { return cluster.host_per_kernel; }),
      number_key("spread", kShare, false, kGuess,
                 "The standard deviation of the ranks' computation, as a part of its time.",
                 [](auto& cluster) -> auto& { return cluster.spread; }),
  };
}

std::vector<ClusterKey> keys_of_cpus() {
  return {
      number_key("cpu.threads", {Unit::kNone, {.lower = 1, .upper = 1024}}, true, std::nullopt,
                 "Threads of each rank when the times were measured.",
                 [](auto& cluster) -> auto& { return cluster.host_speed->threads; }),
      operators_key("cpu.operators"),
      host_products_key("cpu.products"),
      exchanges_key("cpu.exchanges"),
  };
}

std::vector<ClusterKey> joined_keys() {
  std::vector<ClusterKey> keys;
  for (auto part :
       {keys_of_hosts(), keys_of_device(), keys_of_links(), keys_of_nccl(), keys_of_times(), keys_of_cpus()}) {
    keys.insert(keys.end(), part.begin(), part.end());
  }
  return keys;
}

}  // namespace

const std::vector<ClusterKey>& cluster_keys() {
  static const std::vector<ClusterKey> keys = joined_keys();
  return keys;
}

const ClusterKey* find_cluster_key(const std::string& path) {
  const std::vector<ClusterKey>& keys = cluster_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const ClusterKey& key) { return key.path == path; });
  return found == keys.end() ? nullptr : &*found;
}

KeyScope scope_of(const ClusterKey& key) {
  if (key.path == "hosts" || key.path == "ranks_per_host" || key.path == "host_memory") return KeyScope::kAll;
  if (key.path == "host_per_kernel" || key.path == "spread") return KeyScope::kTimes;
  return key.path.rfind("cpu.", 0) == 0 ? KeyScope::kCpus : KeyScope::kDevices;
}

bool is_of(const ClusterKey& key, const Cluster& cluster) {
  switch (scope_of(key)) {
    case KeyScope::kAll:
      return true;
    case KeyScope::kDevices:
      return cluster.device.has_value();
    case KeyScope::kCpus:
      return cluster.host_speed.has_value();
    case KeyScope::kTimes:
      return cluster.has_times();
  }
  return false;
}

Provenances usual_provenances(const std::vector<std::string>& guesses, const std::vector<std::string>& calibrated) {
  Provenances provenances;
  for (const ClusterKey& key : cluster_keys()) {
    if (key.usual && scope_of(key) != KeyScope::kCpus) provenances[key.path] = *key.usual;
  }
  for (const std::string& path : guesses) provenances.at(path) = Provenance::kGuess;
  for (const std::string& path : calibrated) provenances.at(path) = Provenance::kCalibrated;
  return provenances;
}

}  // namespace fsdp::planner
