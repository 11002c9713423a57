// The events of a trace: its rows, and the ranges in each row.
#include "trace/trace_file.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::trace::trace_file_test {
namespace {

using Json = nlohmann::json;

Json parse(const std::string& events) { return Json::parse("[" + events + "]"); }

// Returns the rows (the events' "tid") of the ranges, by the ranges' names.
std::map<std::string, int> rows_of(const std::vector<TraceRange>& ranges) {
  std::map<std::string, int> rows;
  for (const Json& event : parse(trace_events(0, {ranges, {}}))) {
    if (event["ph"] == "X") rows[event["name"]] = event["tid"];
  }
  return rows;
}

TEST(TraceFile, AnEventHasNameTimeAndPlace) {
  Json events = parse(trace_events(3, {{{TraceTrack::kGather, "layers.0", Pass::kBackward, 2500, 5000}}, {}}));
  Json want = {{"ph", "X"},
               {"name", "layers.0"},
               {"cat", "gather"},
               {"pid", 3},
               {"ts", 2.5},
               {"dur", 2.5},
               {"args", {{"unit", "layers.0"}, {"pass", "backward"}}}};
  Json got = events.back();
  want["tid"] = got["tid"];
  EXPECT_EQ(got, want);
  std::set<std::string> names;
  for (const Json& event : events) {
    if (event["ph"] == "M" && event["args"].contains("name")) names.insert(event["args"]["name"]);
  }
  EXPECT_EQ(names, (std::set<std::string>{"rank 3", "all-gather"}));
}

TEST(TraceFile, OverlappingGathersHaveRowsOfTheirOwn) {
  auto rows = rows_of({{TraceTrack::kGather, "a", Pass::kForward, 0, 10},
                       {TraceTrack::kGather, "b", Pass::kForward, 5, 15},
                       {TraceTrack::kGather, "c", Pass::kForward, 10, 20},
                       {TraceTrack::kReduce, "d", Pass::kReduce, 0, 10}});
  EXPECT_EQ(rows["a"], rows["c"]);
  EXPECT_EQ(rows["b"], rows["a"] + 1);
  EXPECT_NE(rows["d"], rows["a"]);
}

TEST(TraceFile, ThousandsOfGathersInFlightHaveRowsOfTheirOwn) {
  std::vector<TraceRange> ranges;
  constexpr int kGathers = 3000;
  for (int i = 0; i < kGathers; ++i) {
    ranges.push_back({TraceTrack::kGather, "gather " + std::to_string(i), Pass::kForward, i, kGathers + i});
    ranges.push_back({TraceTrack::kReduce, "reduction " + std::to_string(i), Pass::kReduce, i, kGathers + i});
  }
  ranges.push_back({TraceTrack::kGather, "later", Pass::kForward, kGathers + 1, 2 * kGathers});
  const auto rows = rows_of(ranges);
  std::set<int> different;
  for (const auto& [name, row] : rows) different.insert(row);
  EXPECT_EQ(different.size(), 2 * kGathers);
  EXPECT_EQ(rows.at("later"), rows.at("gather 0"));
}

TEST(TraceFile, WaitsLieWithinComputation) {
  auto rows = rows_of({{TraceTrack::kWait, "b", Pass::kForward, 2, 4},
                       {TraceTrack::kCompute, "a", Pass::kForward, 0, 10},
                       {TraceTrack::kCompute, "b", Pass::kForward, 10, 20},
                       {TraceTrack::kWait, "c", Pass::kReduce, 20, 24}});
  EXPECT_EQ(rows["a"], rows["wait for gather: b"]);
  EXPECT_EQ(rows["a"], rows["b"]);
  EXPECT_EQ(rows["a"], rows["wait for reduction: c"]);
}

TEST(TraceFile, EachStageOfAPipelineHasARow) {
  const std::vector<TraceRange> ranges = {{TraceTrack::kStageForward, "F0", Pass::kForward, 0, 10, 1},
                                          {TraceTrack::kStageForward, "F1", Pass::kForward, 10, 20, 3},
                                          {TraceTrack::kStageWait, "a message", Pass::kBackward, 20, 30, 1},
                                          {TraceTrack::kStageBackward, "B0", Pass::kBackward, 30, 40, 1}};
  const auto rows = rows_of(ranges);
  EXPECT_EQ(rows.at("B0"), rows.at("F0"));
  EXPECT_EQ(rows.at("wait for a message"), rows.at("F0"));
  EXPECT_EQ(rows.at("F1"), rows.at("F0") + 2);
  std::set<std::string> names;
  for (const Json& event : parse(trace_events(0, {ranges, {}}))) {
    if (event["name"] == "thread_name") names.insert(event["args"]["name"]);
  }
  EXPECT_EQ(names, (std::set<std::string>{"stage 1", "stage 3"}));
}

TEST(TraceFile, MemoryOfSeveralStagesIsAddedUp) {
  const Json events = parse(trace_events(0, {{}, {{1500, {{"shards", 80}, {"shards", 7}}}}}));
  EXPECT_EQ(events.back()["args"], Json({{"shards", 87}}));
}

TEST(TraceFile, MemoryIsACounter) {
  Json events =
      parse(trace_events(2, {{}, {{1500, {{"shards", 80}, {"everything else", 7}}}, {2500, {{"shards", 0}}}}}));
  const Json want = {
      {"ph", "C"}, {"name", "memory"}, {"pid", 2}, {"ts", 1.5}, {"args", {{"shards", 80}, {"everything else", 7}}}};
  ASSERT_GE(events.size(), 2);
  EXPECT_EQ(events[events.size() - 2], want);
  EXPECT_EQ(events.back()["args"], Json({{"shards", 0}}));
}

TEST(TraceFile, HoldsAllRanks) {
  testing::TemporaryFolder folder;
  std::filesystem::path path = folder.path() / "new" / "trace.json";
  testing::run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
    int rank = communicator->rank();
    std::vector<TraceRange> ranges;
    if (rank > 0) ranges.push_back({TraceTrack::kCompute, "u", Pass::kForward, 1000000 * rank, 1000000 * rank + 1});
    write_trace(path, *communicator, {ranges, {{1000000 + 500, {{"shards", 8}}}}});
  });
  Json file = Json::parse(std::ifstream(path));
  std::map<int, double> times;
  for (const Json& event : file["traceEvents"]) {
    if (event["ph"] == "X") times[event["pid"]] = event["ts"];
    if (event["ph"] == "C") {
      EXPECT_EQ(event["ts"], 0.5);
    }
  }
  EXPECT_EQ(times, (std::map<int, double>{{1, 0}, {2, 1000}}));
}

TEST(TraceFile, AFileThatCannotBeWrittenIsAnErrorOnAllRanks) {
  testing::run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    testing::expect_error([&] { write_trace("/proc/nothing/trace.json", *communicator, Trace{}); },
                          {"the trace was not written", "/proc/nothing"});
  });
}

}  // namespace
}  // namespace fsdp::trace::trace_file_test
