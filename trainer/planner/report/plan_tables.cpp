#include "planner/report/plan_tables.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/report/stage_document.h"
#include "report_page/page_text.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;
using trainer::Table;

std::string size_cell(const ordered_json& value) { return trainer::bytes_text(value.get<double>()); }

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// "given": in a file that says no more about it.
std::string provenance_cell(const ordered_json& plan, const char* path) {
  const ordered_json& cluster = plan.at("cluster");
  const bool known = cluster.contains("provenance") && cluster["provenance"].contains(path);
  return known ? cluster["provenance"][path].get<std::string>() : "given";
}

bool are_alike(const ordered_json& a, const ordered_json& b) {
  return a.at("strategy") == b.at("strategy") && a.at("parameters") == b.at("parameters") &&
         a.at("shard_bytes") == b.at("shard_bytes") && a.at("gathered_bytes") == b.at("gathered_bytes");
}

std::string unit_name(const ordered_json& unit) {
  const auto name = unit.at("name").get<std::string>();
  return name.empty() ? "the root" : name;
}

}  // namespace

std::string grouped_digits(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

Table totals_table(const ordered_json& plan) {
  const ordered_json& memory = plan.at("memory");
  const ordered_json& host = memory.at("host");
  Table table{.columns = {"", "Size", "How known"}, .rows = {}};
  const auto add = [&](const std::string& name, const ordered_json& value, const std::string& remark) {
    table.rows.push_back({name, {size_cell(value), remark}});
  };
  if (memory.contains("device")) {
    const ordered_json& device = memory["device"];
    const char* communicators =
        plan.at("cluster").at("hosts") == 1 ? "nccl.memory_on_host" : "nccl.memory_across_hosts";
    add("Device: tensors at their peak", device.at("requested"), "");
    add("Device: allocated, in blocks", device.at("allocated"), "");
    add("Device: reserved by the allocator", device.at("reserved"), "modelled");
    add("Device: context of CUDA", device.at("context"), provenance_cell(plan, "device.context"));
    add("Device: communicators of NCCL", device.at("communicators"), provenance_cell(plan, communicators));
    add("Device: total", device.at("total"), "");
    add("Device: its memory", device.at("capacity"), provenance_cell(plan, "device.memory"));
  }
  add("Host: tensors of a rank at their peak", host.at("pageable"), "");
  add("Host: pinned memory of a rank", host.at("pinned"), "");
  add("Host: the process of a rank", host.at("process"), "guess");
  add("Host: all ranks of a host", host.at("per_host"), "");
  if (!host.at("capacity").is_null()) add("Host: its memory", host.at("capacity"), "given");
  return table;
}

Table peaks_table(const ordered_json& use) {
  const ordered_json& peaks = use.at("peak_of_step");
  Table table{.columns = {"At the peak of"}, .rows = {}};
  std::vector<std::string> kinds, moments, totals;
  for (const ordered_json& peak : peaks) {
    table.columns.push_back("step " + (peak.at("step").is_null() ? "–" : peak.at("step").dump()));
    moments.push_back(peak.at("phase").get<std::string>());
    totals.push_back(size_cell(peak.at("bytes")));
    for (const auto& [kind, bytes] : peak.at("by_kind").items()) {
      if (std::count(kinds.begin(), kinds.end(), kind) == 0) kinds.push_back(kind);
    }
  }
  table.rows.push_back({"phase", moments});
  for (const std::string& kind : kinds) {
    std::vector<std::string> cells;
    for (const ordered_json& peak : peaks) {
      cells.push_back(peak.at("by_kind").contains(kind) ? size_cell(peak["by_kind"][kind]) : "–");
    }
    table.rows.push_back({kind, cells});
  }
  table.rows.push_back({"together", totals});
  return table;
}

Table units_table(const ordered_json& units) {
  Table table{.columns = {"Unit", "Units", "Parameters of each", "Shard of each", "Gathered, each", "Strategy"},
              .rows = {}};
  for (size_t first = 0; first < units.size();) {
    size_t end = first + 1;
    while (end < units.size() && are_alike(units[first], units[end])) ++end;
    const ordered_json& unit = units[first];
    const std::string last = end - first > 1 ? " … " + unit_name(units[end - 1]) : "";
    table.rows.push_back({unit_name(unit) + last,
                          {std::to_string(end - first), grouped_digits(unit.at("parameters").get<int64_t>()),
                           size_cell(unit.at("shard_bytes")), size_cell(unit.at("gathered_bytes")),
                           unit.at("strategy").get<std::string>()}});
    first = end;
  }
  return table;
}

Table stages_table(const ordered_json& ranks) {
  Table table{.columns = {"Rank", "Part of the model", "Parameters", "Verdict", "Memory", "Computes"}, .rows = {}};
  for (const ordered_json& rank : ranks) {
    table.rows.push_back(
        {rank.at("rank").dump(),
         {stages_text(rank), grouped_digits(rank.at("parameters").get<int64_t>()),
          rank.at("verdict").get<std::string>(), size_cell(rank.at("bytes")), busy_text(rank).value_or("–")}});
  }
  return table;
}

Table largest_table(const ordered_json& largest) {
  Table table{.columns = {"Purpose", "Size", "Made by"}, .rows = {}};
  for (const ordered_json& tensor : largest) {
    const std::string maker = tensor.contains("made_by") ? tensor["made_by"].get<std::string>() : "–";
    table.rows.push_back({tensor.at("kind").get<std::string>(), {size_cell(tensor.at("bytes")), maker}});
  }
  return table;
}

Table changes_table(const ordered_json& changes) {
  Table table{.columns = {"Change", "Verdict", "Needs", "Remark"}, .rows = {}};
  for (const ordered_json& change : changes) {
    std::string set;
    for (const ordered_json& one : change.at("set"))
      set += (set.empty() ? "--set " : " --set ") + one.get<std::string>();
    table.rows.push_back({set,
                          {change.at("verdict").get<std::string>(), size_cell(change.at("total")),
                           change.contains("note") ? change["note"].get<std::string>() : ""}});
  }
  return table;
}

Table plan_time_table(const ordered_json& time) {
  Table table{.columns = {"", "Value"}, .rows = {}};
  for (const auto& [key, value] : time.items()) {
    if (!value.is_number()) continue;
    const bool seconds = ends_with(key, "_seconds");
    std::string name = seconds ? key.substr(0, key.size() - std::string("_seconds").size()) : key;
    std::replace(name.begin(), name.end(), '_', ' ');
    const std::string text = seconds                    ? trainer::number_text(value.get<double>() * 1e3) + " ms"
                             : ends_with(key, "_bytes") ? size_cell(value)
                                                        : trainer::number_text(value.get<double>());
    table.rows.push_back({name, {text}});
  }
  return table;
}

}  // namespace fsdp::planner
