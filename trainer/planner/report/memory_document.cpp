#include "planner/report/memory_document.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

ordered_json moment(const MemoryMoment& moment) {
  ordered_json by_kind = ordered_json::object();
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    if (moment.by_kind[kind] > 0) by_kind[to_string(static_cast<MemoryKind>(kind))] = moment.by_kind[kind];
  }
  // Steps are counted from 1, as in the log of a run.
  const ordered_json step = moment.step < 0 ? ordered_json(nullptr) : ordered_json(moment.step + 1);
  return {{"step", step}, {"phase", to_string(moment.phase)}, {"bytes", moment.bytes}, {"by_kind", by_kind}};
}

ordered_json largest(const MemoryUse& use, const Tape& tape) {
  ordered_json list = ordered_json::array();
  for (size_t index : use.largest_at_peak) {
    const Lifetime& lifetime = use.lifetimes[index];
    ordered_json entry = {{"bytes", lifetime.bytes}, {"kind", to_string(lifetime.kind)}};
    if (lifetime.maker >= 0) entry["made_by"] = tape.names().at(static_cast<size_t>(lifetime.maker));
    list.push_back(std::move(entry));
  }
  return list;
}

// The kinds that occur, the phases with their first entries, and points [entry, bytes of each kind].
ordered_json over_step(const MemoryCourse& course) {
  std::vector<size_t> kinds;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    const auto occurs = [&](const MemoryMoment& moment) { return moment.by_kind[kind] > 0; };
    if (std::any_of(course.moments.begin(), course.moments.end(), occurs)) kinds.push_back(kind);
  }
  ordered_json document = {{"entries", course.end - course.begin},
                           {"kinds", ordered_json::array()},
                           {"phases", ordered_json::array()},
                           {"points", ordered_json::array()}};
  for (const size_t kind : kinds) document["kinds"].push_back(to_string(static_cast<MemoryKind>(kind)));
  const char* phase = "";
  for (const MemoryMoment& moment : course.moments) {
    const size_t entry = moment.entry - course.begin;
    if (std::string(phase) != to_string(moment.phase)) {
      phase = to_string(moment.phase);
      document["phases"].push_back({entry, phase});
    }
    ordered_json point = {entry};
    for (const size_t kind : kinds) point.push_back(moment.by_kind[kind]);
    document["points"].push_back(std::move(point));
  }
  return document;
}

void add_use(ordered_json& document, const MemoryUse& use, const Tape& tape) {
  document["peak"] = moment(use.peak);
  document["peak_of_step"] = ordered_json::array();
  for (const MemoryMoment& peak : use.peak_of_step) document["peak_of_step"].push_back(moment(peak));
  document["largest"] = largest(use, tape);
  document["over_step"] = over_step(use.course);
}

ordered_json device_document(const DeviceForecast& device, const Tape& tape) {
  ordered_json document = {{"verdict", to_string(device.verdict)},
                           {"capacity", device.capacity},
                           {"total", device.total},
                           {"reserved", device.replay.reserved.peak},
                           {"allocated", device.replay.allocated.peak},
                           {"requested", device.use.peak.bytes},
                           {"context", device.context},
                           {"communicators", device.communicators},
                           {"allocator_retries", device.replay.retries}};
  add_use(document, device.use, tape);
  return document;
}

ordered_json host_document(const HostForecast& host, const Tape& tape) {
  ordered_json document = {{"verdict", to_string(host.verdict)},
                           {"capacity", host.capacity ? ordered_json(*host.capacity) : ordered_json(nullptr)},
                           {"per_host", host.per_host},
                           {"with_holes", host.with_holes},
                           {"pageable", host.use.peak.bytes},
                           {"shared", host.shared},
                           {"pinned", host.pinned},
                           {"process", host.process}};
  add_use(document, host.use, tape);
  return document;
}

}  // namespace

nlohmann::ordered_json memory_document(const MemoryForecast& forecast, const Tape& tape) {
  ordered_json document = {{"verdict", to_string(forecast.verdict())}};
  if (forecast.device) document["device"] = device_document(*forecast.device, tape);
  document["host"] = host_document(forecast.host, tape);
  return document;
}

}  // namespace fsdp::planner
