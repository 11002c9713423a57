#include "planner/report/plan_text.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <cstdint>
#include <iomanip>
#include <sstream>

#include "planner/report/stage_document.h"
#include "planner/report/text_row.h"
#include "planner/report/time_text.h"
#include "report_page/page_text.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

std::string bytes(const ordered_json& value) { return trainer::bytes_text(value.get<double>()); }

std::string count(int64_t value) {
  constexpr std::array<std::pair<double, const char*>, 3> kUnits = {{{1e9, " B"}, {1e6, " M"}, {1e3, " K"}}};
  for (const auto& [unit, letter] : kUnits) {
    if (static_cast<double>(value) >= unit) {
      std::ostringstream text;
      text << std::fixed << std::setprecision(2) << static_cast<double>(value) / unit << letter;
      return text.str();
    }
  }
  return std::to_string(value);
}

std::string moment_text(const ordered_json& moment) {
  if (moment.at("step").is_null()) return "before the first step";
  return c10::str("in ", moment.at("phase").get<std::string>(), " of step ", moment.at("step").get<int>());
}

// "fits: 5.30 GiB of 79.18 GiB of each device's memory, 73.88 GiB to spare"
std::string judged(const std::string& verdict, const ordered_json& total, const ordered_json& capacity,
                   const std::string& of_what) {
  const int64_t spare = capacity.get<int64_t>() - total.get<int64_t>();
  return c10::str(verdict, ": ", bytes(total), " of ", bytes(capacity), " of ", of_what, ", ",
                  spare >= 0 ? bytes(spare) + " to spare" : bytes(-spare) + " too little", "\n");
}

}  // namespace

std::string verdict_text(const ordered_json& memory) {
  std::string text;
  if (memory.contains("device")) {
    const ordered_json& device = memory["device"];
    text += judged(device.at("verdict"), device.at("total"), device.at("capacity"), "each device's memory");
    if (const auto retries = device.at("allocator_retries").get<int64_t>(); retries > 0) {
      text += c10::str("  the allocator gives back its free segments ", retries,
                       " times, and the device stands still meanwhile\n");
    }
  }
  const ordered_json& host = memory.at("host");
  if (!host.at("capacity").is_null()) {
    text += judged(host.at("verdict"), host.at("per_host"), host.at("capacity"), "each host's memory");
  } else if (!memory.contains("device")) {
    text += c10::str("needs ", bytes(host.at("per_host")),
                     " on each host; --host-memory 64GiB would say whether it fits\n");
  }
  return text;
}

namespace {

std::string kinds(const ordered_json& peak) {
  std::string text;
  for (const auto& [kind, size] : peak.at("by_kind").items()) text += row(4, kind, bytes(size));
  return text;
}

std::string largest(const ordered_json& list) {
  std::string text;
  for (const ordered_json& entry : list) {
    const std::string maker = entry.contains("made_by") ? "made by " + entry["made_by"].get<std::string>() : "";
    text += row(2, entry.at("kind").get<std::string>(), bytes(entry.at("bytes")), maker);
  }
  return text;
}

// "a guess", "measured", …; nothing for a number whose file does not say.
std::string origin(const ordered_json& cluster, const char* path) {
  if (!cluster.contains("provenance") || !cluster["provenance"].contains(path)) return "";
  const auto word = cluster["provenance"][path].get<std::string>();
  return word == "guess" ? "a guess" : word;
}

std::string origin_of_communicators(const ordered_json& cluster) {
  return origin(cluster, cluster.at("hosts") == 1 ? "nccl.memory_on_host" : "nccl.memory_across_hosts");
}

std::string device_table(const ordered_json& device, const ordered_json& cluster) {
  return "\nmemory of a device\n" +
         row(2, "tensors at their peak", bytes(device.at("requested")), moment_text(device.at("peak"))) +
         kinds(device.at("peak")) + row(2, "allocated, in blocks of 512 bytes", bytes(device.at("allocated"))) +
         row(2, "reserved by the allocator", bytes(device.at("reserved")), "modelled") +
         row(2, "context of CUDA", bytes(device.at("context")), origin(cluster, "device.context")) +
         row(2, "communicators of NCCL", bytes(device.at("communicators")), origin_of_communicators(cluster)) +
         row(2, "total", bytes(device.at("total"))) + "\nlargest tensors at the peak\n" + largest(device.at("largest"));
}

std::string host_table(const ordered_json& host, bool is_target) {
  std::string text = "\nmemory of a rank on its host\n" +
                     row(2, "tensors at their peak", bytes(host.at("pageable")), moment_text(host.at("peak"))) +
                     kinds(host.at("peak"));
  if (host.at("shared") != 0) {
    text += row(2, "of these, shared with other ranks", bytes(host.at("shared")), "at most; this rank's part");
  }
  if (host.at("pinned") != 0) {
    text += row(2, "pinned", bytes(host.at("pinned")), "each block rounded up to a power of two");
  }
  text += row(2, "the process", bytes(host.at("process")), is_target ? "measured" : "a guess") +
          row(2, "all ranks of a host", bytes(host.at("per_host"))) +
          row(2, "with holes in their heaps, at most", bytes(host.at("with_holes")), "as seen with small models");
  if (is_target) text += "\nlargest tensors at the peak\n" + largest(host.at("largest"));
  return text;
}

// Each rank stands for those that hold the same part of the model.
std::string pipeline_rows(const ordered_json& pipeline) {
  std::string text = c10::str("\nranks of the pipeline (", pipeline.at("schedule").get<std::string>(), ", ",
                              pipeline.at("micro_batches").get<int64_t>(), " micro-batches)\n");
  for (const ordered_json& rank : pipeline.at("ranks")) {
    std::string figures = c10::str(rank.at("verdict").get<std::string>(), "; ", stages_text(rank));
    if (const auto busy = busy_text(rank)) figures = c10::str("computes ", *busy, "; ", figures);
    text += row(2, c10::str("rank ", rank.at("rank").get<int>()), bytes(rank.at("bytes")), figures);
  }
  return text;
}

std::string time_section(const ordered_json& plan) {
  if (plan.contains("time")) return time_text(plan["time"], plan.at("steps").get<int>());
  return "\nno time of a step: the cluster has no times of these CPUs (fsdp plan --calibrate FILE --nproc-per-node N "
         "measures them)\n";
}

std::string change_rows(const ordered_json& changes) {
  if (changes.empty()) return "\nno single change was found that makes it smaller\n";
  std::string text = "\nchanges, each planned by itself\n";
  for (const ordered_json& change : changes) {
    std::string set;
    for (const ordered_json& one : change.at("set"))
      set += (set.empty() ? "--set " : " --set ") + one.get<std::string>();
    text += c10::str("  ", set, "\n    ", change.at("verdict").get<std::string>(), ": ", bytes(change.at("total")),
                     change.contains("note") ? "; " + change["note"].get<std::string>() : "", "\n");
  }
  return text;
}

}  // namespace

std::string stack_text(const ordered_json& plan) {
  const std::string name = plan.value("stack", "ours");
  return name == "ours" ? "" : "; times of the stack " + name;
}

std::string plan_head(const ordered_json& plan) {
  const ordered_json& model = plan.at("model");
  const std::string units = c10::str(model.at("units").get<int64_t>(), " units"), rank = plan.at("rank").dump();
  const bool whole = !plan.contains("pipeline");
  return c10::str(model.at("type").get<std::string>(), ", ", count(model.at("parameters")), " parameters",
                  whole ? " in " + units : "", ", on ", plan["cluster"].at("text").get<std::string>(), "; rank ", rank,
                  whole ? "" : ", its stages in " + units, ", ", plan.at("steps").get<int>(), " steps",
                  stack_text(plan), "\n");
}

std::string plan_text(const ordered_json& plan) {
  const ordered_json& memory = plan.at("memory");
  const bool has_device = memory.contains("device");
  return plan_head(plan) + verdict_text(memory) +
         (has_device ? device_table(memory["device"], plan.at("cluster")) : "") +
         host_table(memory.at("host"), !has_device) +
         (plan.contains("pipeline") ? pipeline_rows(plan["pipeline"]) : "") + time_section(plan) +
         (plan.contains("changes") ? change_rows(plan["changes"]) : "");
}

}  // namespace fsdp::planner
