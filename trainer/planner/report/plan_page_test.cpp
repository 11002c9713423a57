// The tables and the data of a plan's page. tests/python/test_plan_page.py looks at it in a browser.
#include "planner/report/plan_page.h"

#include <gmock/gmock.h>

#include "planner/report/plan_tables.h"

namespace fsdp::planner::plan_page_test {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

ordered_json small_plan() {
  return ordered_json::parse(R"({
    "model": {"type": "gpt2<", "parameters": 12, "units": 3},
    "cluster": {"text": "4 x CPU", "hosts": 1},
    "rank": 0, "steps": 3,
    "units": [{"name": "", "strategy": "full_shard", "parameters": 1234, "shard_bytes": 4, "gathered_bytes": 16},
              {"name": "h.0", "strategy": "full_shard", "parameters": 4, "shard_bytes": 4, "gathered_bytes": 16},
              {"name": "h.1", "strategy": "full_shard", "parameters": 4, "shard_bytes": 4, "gathered_bytes": 16}],
    "memory": {"verdict": "fits", "host": {"verdict": "fits", "capacity": 4096, "per_host": 2048, "pageable": 64,
      "pinned": 0, "process": 1024, "largest": [{"bytes": 3, "kind": "kept"}, {"bytes": 2, "kind": "activations", "made_by": "aten::mm"}],
      "peak_of_step": [{"step": 1, "phase": "backward", "bytes": 3, "by_kind": {"kept": 3}},
                       {"step": 2, "phase": "update", "bytes": 4, "by_kind": {"kept": 3, "activations": 1}}],
      "over_step": {"entries": 200, "kinds": ["kept", "activations"], "phases": [[0, "forward"], [50, "backward"]],
                    "points": [[0, 3, 0], [50, 3, 1]]}}}})");
}

TEST(PlanPage, PointsLieOnPartsOfTheStep) {
  const std::string page = plan_page(small_plan());
  EXPECT_THAT(page, AllOf(HasSubstr(R"("unit":"%")"), HasSubstr("[25.0,3,1]"),
                          HasSubstr("forward from 0 %, backward from 25 %"), HasSubstr("Plan: gpt2&lt; on 4 x CPU")));
  EXPECT_THAT(page, AllOf(HasSubstr("class=\"verdict fits\">fits: 2.00 KiB of 4.00 KiB"),
                          Not(HasSubstr("Time of a step")), Not(HasSubstr("<h2>Changes"))));
}

TEST(PlanPage, TimeAndChangesAreThereIfThePlanHasThem) {
  ordered_json plan = small_plan();
  plan["time"] = {{"step_seconds", 0.25}, {"steps", ordered_json::array()}};
  plan["changes"] = ordered_json::array();
  EXPECT_THAT(plan_page(plan),
              AllOf(HasSubstr("Time of a step"), HasSubstr("250 ms"), HasSubstr("No single change was found")));
  plan["changes"] = {{{"set", {"a=1", "b=2"}}, {"verdict", "tight"}, {"total", 1024}}};
  EXPECT_THAT(plan_page(plan), HasSubstr("--set a=1 --set b=2</th><td>tight</td><td>1.00 KiB</td>"));
}

TEST(PlanPage, ATimelineReplacesTheOrderOfOperations) {
  const trainer::StepTimeline timeline{
      .length_ms = 8,
      .ranks = {{.rows = {{"compute",
                           {{.begin_ms = 1, .end_ms = 3, .kind = "compute", .name = "h.0", .pass = "forward"}}}}}}};
  EXPECT_THAT(plan_page(small_plan(), timeline),
              AllOf(HasSubstr("step-0-timeline"), HasSubstr(R"([1.0,3.0,"compute","h.0","forward"])"),
                    Not(HasSubstr(R"("unit":"%")"))));
}

TEST(PlanTables, UnitsThatAreAlikeShareARow) {
  EXPECT_THAT(units_table(small_plan()["units"]).rows,
              ElementsAre(Pair("the root", ElementsAre("1", "1,234", "4 B", "16 B", "full_shard")),
                          Pair("h.0 … h.1", ElementsAre("2", "4", "4 B", "16 B", "full_shard"))));
}

TEST(PlanTables, PeaksListAllPurposesOfAllSteps) {
  EXPECT_THAT(peaks_table(small_plan()["memory"]["host"]).rows,
              ElementsAre(Pair("phase", ElementsAre("backward", "update")), Pair("kept", ElementsAre("3 B", "3 B")),
                          Pair("activations", ElementsAre("–", "1 B")), Pair("together", ElementsAre("3 B", "4 B"))));
}

TEST(PlanTables, TimesAreInMilliseconds) {
  EXPECT_THAT(
      plan_time_table({{"step_seconds", 0.25}, {"volume_bytes", 2048}, {"mfu", 0.5}, {"marks", {{"a", 1}}}}).rows,
      ElementsAre(Pair("step", ElementsAre("250 ms")), Pair("volume bytes", ElementsAre("2.00 KiB")),
                  Pair("mfu", ElementsAre("0.5"))));
}

}  // namespace
}  // namespace fsdp::planner::plan_page_test
