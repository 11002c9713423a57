#include "comm/meeting/slurm_environment.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <limits>
#include <string_view>

#include "base/env.h"

namespace fsdp::comm {
namespace {

constexpr int64_t kMost = std::numeric_limits<int>::max();
constexpr int kFirstPort = 20000, kPorts = 12000;

int needed(const char* name, int64_t least) {
  const auto value = base::env_int(name, least, kMost);
  TORCH_CHECK(value, name,
              " is not set, but SLURM_STEP_ID is, so srun started this process; start it with srun, or with "
              "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set");
  return static_cast<int>(*value);
}

std::string needed_text(const char* name) {
  const auto value = base::env_string(name);
  TORCH_CHECK(value, name, " is not set, but the step of Slurm has several hosts; start it with srun");
  return *value;
}

// Removes and returns a number at the beginning of `text`.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

int port_of_step() {
  const int64_t job = base::env_int("SLURM_JOB_ID", 0, std::numeric_limits<int64_t>::max()).value_or(0);
  const int64_t step = base::env_int("SLURM_STEP_ID", 0, std::numeric_limits<int64_t>::max()).value_or(0);
  return kFirstPort + static_cast<int>((job % kPorts * 31 + step % kPorts) % kPorts);
}

}  // namespace

std::string first_slurm_host(const std::string& hosts) {
  std::string first;
  for (size_t i = 0; i < hosts.size() && hosts[i] != ','; ++i) {
    if (hosts[i] != '[') {
      first += hosts[i];
      continue;
    }
    const size_t end = hosts.find(']', i), stop = hosts.find_first_of("-,]", i);
    TORCH_CHECK(end != std::string::npos && stop > i + 1, "Slurm's list of hosts \"", hosts, "\" cannot be parsed");
    first += hosts.substr(i + 1, stop - i - 1);
    i = end;
  }
  TORCH_CHECK(!first.empty(), "Slurm's list of hosts \"", hosts, "\" names no host");
  return first;
}

int slurm_tasks_of_node(const std::string& tasks, int node) {
  std::string_view left = tasks;
  for (int first = 0;;) {
    const auto count = take_number(left);
    std::optional<int> nodes = 1;
    bool is_read = count.has_value();
    if (is_read && take(left, "(x")) {
      nodes = take_number(left);
      is_read = nodes && take(left, ")");
    }
    is_read = is_read && (left.empty() || take(left, ","));
    TORCH_CHECK(is_read, "SLURM_STEP_TASKS_PER_NODE is \"", tasks, "\", which cannot be read; accepted: 2(x3),1");
    if (node < first + *nodes) return *count;
    first += *nodes;
    TORCH_CHECK(!left.empty(), "SLURM_NODEID is ", node, ", but SLURM_STEP_TASKS_PER_NODE \"", tasks, "\" lists ",
                first, " node(s)");
  }
}

std::optional<SlurmPlace> slurm_place() {
  if (!base::env_string("SLURM_STEP_ID") || !base::env_string("SLURM_PROCID")) return std::nullopt;
  SlurmPlace place;
  place.size = needed("SLURM_STEP_NUM_TASKS", 1);
  place.rank = needed("SLURM_PROCID", 0);
  place.local_rank = needed("SLURM_LOCALID", 0);
  TORCH_CHECK(place.rank < place.size, "SLURM_PROCID is ", place.rank, " but SLURM_STEP_NUM_TASKS is ", place.size,
              ": ranks go from 0 to ", place.size - 1);
  const bool has_one_host = needed("SLURM_STEP_NUM_NODES", 1) == 1;
  place.local_size = has_one_host
                         ? place.size
                         : slurm_tasks_of_node(needed_text("SLURM_STEP_TASKS_PER_NODE"), needed("SLURM_NODEID", 0));
  place.master_address = has_one_host ? "127.0.0.1" : first_slurm_host(needed_text("SLURM_STEP_NODELIST"));
  place.master_port = port_of_step();
  return place;
}

}  // namespace fsdp::comm
