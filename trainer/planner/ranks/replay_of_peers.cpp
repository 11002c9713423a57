#include "planner/ranks/replay_of_peers.h"

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::planner {
namespace {

using nlohmann::json;

// Rows of numbers, which all processes of a plan write and read alike.
std::string bytes_of(const json& document) {
  std::string bytes;
  json::to_cbor(document, bytes);
  return bytes;
}

json row_of(const ReplayItem& item) {
  return {static_cast<int>(item.kind), item.memory_bound, item.stream, item.event, item.flow, item.host, item.duration,
          static_cast<int>(item.role), item.meeting};
}

ReplayItem item_of(const json& row) {
  ReplayItem item;
  item.kind = static_cast<ReplayKind>(row[0].get<int>());
  item.memory_bound = row[1];
  item.stream = row[2];
  item.event = row[3];
  item.flow = row[4];
  item.host = row[5];
  item.duration = row[6];
  item.role = static_cast<MeetingRole>(row[7].get<int>());
  item.meeting = row[8];
  return item;
}

json row_of(const ReplayFlow& flow) {
  json uses = json::array();
  for (const LinkUse& use : flow.uses) uses.push_back({use.link, use.bytes});
  return {flow.latency, flow.transfer, std::move(uses), flow.arithmetic_share, flow.memory_share};
}

ReplayFlow flow_of(const json& row) {
  ReplayFlow flow{.latency = row[0], .transfer = row[1], .arithmetic_share = row[3], .memory_share = row[4]};
  for (const json& use : row[2]) flow.uses.push_back({use[0], use[1]});
  return flow;
}

json document_of(const Replay& replay) {
  json items = json::array(), flows = json::array();
  for (const ReplayItem& item : replay.items) items.push_back(row_of(item));
  for (const ReplayFlow& flow : replay.flows) flows.push_back(row_of(flow));
  return {{"items", std::move(items)},          {"flows", std::move(flows)}, {"links", replay.links},
          {"meetings", replay.meetings},        {"streams", replay.streams}, {"host_computes", replay.host_computes},
          {"launch_delay", replay.launch_delay}};
}

Replay replay_of(const json& document) {
  Replay replay;
  for (const json& row : document["items"]) replay.items.push_back(item_of(row));
  for (const json& row : document["flows"]) replay.flows.push_back(flow_of(row));
  replay.links = document["links"].get<std::vector<double>>();
  replay.meetings = document["meetings"].get<std::vector<std::string>>();
  replay.streams = document["streams"];
  replay.host_computes = document["host_computes"];
  replay.launch_delay = document["launch_delay"];
  return replay;
}

json document_of(const ReplayResult& result) {
  json items = json::array(), streams = json::array();
  for (const ReplayedItem& item : result.items) items.push_back({item.issued, item.begin, item.end});
  for (const auto& segments : result.streams) {
    json rows = json::array();
    for (const StreamSegment& segment : segments) {
      rows.push_back({static_cast<int>(segment.state), segment.begin, segment.end});
    }
    streams.push_back(std::move(rows));
  }
  return {{"items", std::move(items)},
          {"streams", std::move(streams)},
          {"seconds", result.seconds},
          {"host_busy", result.host_busy},
          {"host_waiting", result.host_waiting}};
}

ReplayResult result_of(const json& document) {
  ReplayResult result;
  for (const json& row : document["items"]) result.items.push_back({row[0], row[1], row[2]});
  for (const json& rows : document["streams"]) {
    std::vector<StreamSegment>& segments = result.streams.emplace_back();
    for (const json& row : rows) {
      segments.push_back({.state = static_cast<StreamState>(row[0].get<int>()), .begin = row[1], .end = row[2]});
    }
  }
  result.seconds = document["seconds"];
  result.host_busy = document["host_busy"];
  result.host_waiting = document["host_waiting"];
  return result;
}

std::string name_of(const char* what, int index) { return c10::str(what, " of ", index); }

// Replays all ranks in this process.
ReplayResult replay_all(PlannedPeers& peers, const Replay& own) {
  std::vector<Replay> replays = {own};
  for (int index = 1; index < peers.count(); ++index) {
    replays.push_back(replay_of(json::from_cbor(peers.take(name_of("replay", index)))));
  }
  std::vector<ReplayResult> results = run_replays(replays);
  for (int index = 1; index < peers.count(); ++index) {
    peers.post(name_of("result", index), bytes_of(document_of(results[static_cast<size_t>(index)])));
  }
  return std::move(results.front());
}

}  // namespace

ReplayResult replay_with(PlannedPeers& peers, const Replay& own) {
  if (peers.index() == 0) return replay_all(peers, own);
  peers.post(name_of("replay", peers.index()), bytes_of(document_of(own)));
  return result_of(json::from_cbor(peers.take(name_of("result", peers.index()))));
}

}  // namespace fsdp::planner
