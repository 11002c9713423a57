// Tests the parts of the page of `fsdp report`. tests/python/test_report.py looks at it in a browser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "fsdp/errors.h"
#include "report_page/comparison.h"
#include "report_page/page.h"
#include "report_page/page_text.h"
#include "report_page/plots.h"
#include "report_page/run_data.h"
#include "support/files/temporary_folder.h"
#include "testing/program.h"

namespace fsdp::trainer::report_page_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ReportPage : public ::testing::Test {
 protected:
  // Writes a run's folder and returns its path.
  std::string write_run(const std::string& name, const std::string& metrics, const std::string& facts = "") const {
    std::filesystem::create_directories(folder_.path(name));
    folder_.write(name + "/metrics.jsonl", metrics);
    if (!facts.empty()) folder_.write(name + "/run.json", facts);
    return folder_.path(name);
  }
  static std::string line(int64_t step, const std::string& values) {
    return "{\"step\":" + std::to_string(step) + "," + values + "}\n";
  }
  std::string error_of(const std::vector<std::string>& folders) const {
    try {
      read_runs(folders);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  }

  testing::TemporaryFolder folder_;
};

std::vector<std::string> cells_of(const Table& table, const std::string& name) {
  for (const auto& [row, cells] : table.rows) {
    if (row == name) return cells;
  }
  return {};
}

TEST_F(ReportPage, RunsAreNamedSoThatTheyCanBeToldApart) {
  const std::string a = write_run("x/run", ""), b = write_run("y/run", ""), c = write_run("other", "");
  const auto runs = read_runs({a, b, c + "/"});
  EXPECT_EQ(runs[0].name, a);
  EXPECT_EQ(runs[1].name, b);
  EXPECT_EQ(runs[2].name, "other");
}

TEST_F(ReportPage, ErrorsNameTheFolderOrTheLine) {
  const std::string run = write_run("run", line(1, "\"loss\":1"));
  EXPECT_THAT(error_of({folder_.path("nowhere")}), HasSubstr("nowhere: no such folder"));
  EXPECT_THAT(error_of({folder_.path("")}), HasSubstr("holds no metrics.jsonl"));
  EXPECT_THAT(error_of({run, run + "/."}), HasSubstr("is given twice"));
  write_run("broken", line(1, "\"loss\":1") + "nonsense\n");
  EXPECT_THAT(error_of({folder_.path("broken")}), AllOf(HasSubstr("broken/metrics.jsonl:2:2: "), Not(HasSubstr("\n"))));
  write_run("facts", "", "{\"ranks\":");
  EXPECT_THAT(error_of({folder_.path("facts")}), HasSubstr("facts/run.json:1:"));
}

TEST_F(ReportPage, LinesMayLackTokensOrSamples) {
  const std::string tokens = write_run("tokens", line(1, "\"loss\":1,\"tokens_per_second\":10"));
  const std::string images = write_run("images", line(1, "\"loss\":1,\"samples_per_second\":3"));
  const auto ids = [](const std::vector<RunData>& runs) {
    std::vector<std::string> ids;
    for (const Plot& plot : plots_of(runs)) ids.push_back(plot.id);
    return ids;
  };
  EXPECT_THAT(ids(read_runs({tokens})), ElementsAre("loss", "tokens_per_second"));
  EXPECT_THAT(ids(read_runs({images})), ElementsAre("loss", "samples_per_second"));
  EXPECT_THAT(ids(read_runs({tokens, images})), ElementsAre("loss", "tokens_per_second", "samples_per_second"));
  const Table table = summary_table(read_runs({tokens, images}));
  EXPECT_THAT(cells_of(table, "Median tokens a second"), ElementsAre("10", "–"));
  EXPECT_THAT(cells_of(table, "Median samples a second"), ElementsAre("–", "3"));
  EXPECT_THAT(cells_of(table, "Median TFLOPS"), IsEmpty());
}

TEST_F(ReportPage, ModelsWithoutAFolderHaveNames) {
  const auto name_of = [&](const std::string& model) {
    const std::string facts = R"({"ranks": 1, "config": {"model_path": null, "model": )" + model + "}}";
    return cells_of(summary_table(read_runs({write_run("run", line(1, "\"loss\":1"), facts)})), "Model");
  };
  EXPECT_THAT(name_of("\"gpt2-xl\""), ElementsAre("gpt2-xl"));
  EXPECT_THAT(name_of(R"({"model_type": "regnet", "depths": [1]})"), ElementsAre("regnet"));
}

TEST_F(ReportPage, RunsAreComparedWithTheFirst) {
  const std::string a = write_run(
      "a", line(1, "\"loss\":4,\"tflops\":1") + line(2, "\"loss\":3,\"tflops\":4") + line(3, "\"loss\":2,\"tflops\":2"),
      R"({"ranks": 2, "config": {"model_path": "models/tiny/", "learning_rate": 0.1, "seed": 1, "output_dir": "a"}})");
  const std::string b = write_run(
      "b", line(1, "\"loss\":4,\"tflops\":3") + line(2, "\"loss\":3.5,\"tflops\":3"),
      R"({"ranks": 4, "config": {"model_path": "models/tiny", "learning_rate": 0.2, "seed": 1, "output_dir": "b"}})");
  const auto runs = read_runs({a, b});
  const Table table = summary_table(runs);
  EXPECT_THAT(table.columns, ElementsAre("", "a", "b"));
  EXPECT_THAT(cells_of(table, "Model"), ElementsAre("tiny", "tiny"));
  EXPECT_THAT(cells_of(table, "Ranks"), ElementsAre("2", "4"));
  EXPECT_THAT(cells_of(table, "Last step"), ElementsAre("3", "2"));
  EXPECT_THAT(cells_of(table, "Last loss"), ElementsAre("2", "3.5 (×1.75)"));
  EXPECT_THAT(cells_of(table, "Median TFLOPS"), ElementsAre("2", "3 (×1.5)"));
  const Table differences = config_differences(runs);
  ASSERT_EQ(differences.rows.size(), 2);
  EXPECT_THAT(cells_of(differences, "learning_rate"), ElementsAre("0.1", "0.2"));
  EXPECT_THAT(cells_of(differences, "model_path"), ElementsAre("\"models/tiny/\"", "\"models/tiny\""));
  EXPECT_THAT(first_loss_differences(runs), ElementsAre("b: losses differ first at step 2: 3.5, and 3 in a"));
}

TEST_F(ReportPage, SaysWhereLossesAreTheSame) {
  const std::string a = write_run("a", line(1, "\"loss\":4") + line(2, "\"loss\":null"));
  const std::string b = write_run("b", line(1, "\"loss\":4") + line(2, "\"loss\":null") + line(3, "\"loss\":1"));
  const std::string c = write_run("c", line(7, "\"loss\":4"));
  EXPECT_THAT(first_loss_differences(read_runs({a, b, c})),
              ElementsAre("b: the losses of all 2 steps in common are those of a", "c: has no step in common with a"));
  EXPECT_TRUE(config_differences(read_runs({a, b})).rows.empty());
}

TEST(Median, LeavesOutValuesThatAreNotFinite) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, std::nan(""), 1, 2, 3, std::numeric_limits<double>::infinity()}), 2.5);
  EXPECT_TRUE(std::isnan(median({std::nan("")})));
}

TEST_F(ReportPage, ValuesThatCannotBeDrawnAreGaps) {
  const std::string run =
      write_run("run", line(1, "\"loss\":4") + line(2, "\"loss\":null") + line(3, "\"loss\":1e300") +
                           line(4, "\"loss\":0.123456789") + line(4, "\"eval_loss\":2"));
  const auto runs = read_runs({run});
  const auto plot = plots_of(runs).at(0);
  const auto json = plot_json(plot);
  EXPECT_EQ(json["curves"][0]["steps"].dump(), "[1,2,3,4]");
  EXPECT_EQ(json["curves"][0]["values"].dump(), "[4.0,null,null,0.1234568]");
  EXPECT_EQ(json["curves"][1]["as_dots"], true);
  EXPECT_EQ(json["curves"][1]["values"].dump(), "[2.0]");
  EXPECT_EQ(plot_summary(plot, runs),
            "Loss. run: 4 at step 1, 0.1235 at step 4, between 0.1235 and 1e+300. run, evaluation: 2 at step 4.");
}

TEST_F(ReportPage, LongRunsKeepTheirPeaks) {
  std::string metrics;
  constexpr int kSteps = 50000, kPeak = 31234, kGap = 40001;
  for (int i = 1; i <= kSteps; ++i) {
    metrics += line(i, std::string("\"loss\":") + (i == kPeak  ? "9"
                                                   : i == kGap ? "null"
                                                               : std::to_string(i % 7 / 7.0)));
  }
  const auto json = plot_json(plots_of(read_runs({write_run("run", metrics)})).at(0))["curves"][0];
  EXPECT_LT(json["steps"].size(), 2100);
  EXPECT_GT(json["steps"].size(), 1900);
  const auto value_at = [&](int64_t step) {
    for (size_t i = 0; i < json["steps"].size(); ++i) {
      if (json["steps"][i] == step) return json["values"][i].dump();
    }
    return std::string("nothing");
  };
  EXPECT_EQ(value_at(kPeak), "9.0");
  EXPECT_EQ(value_at(kGap), "null");
  EXPECT_NE(value_at(1), "nothing");
  EXPECT_NE(value_at(kSteps), "nothing");
}

TEST(PageText, IsNeverRead) {
  EXPECT_EQ(html_text("a<b>&\"'\xff"), "a&lt;b&gt;&amp;&quot;&#39;\xef\xbf\xbd");
  const std::string json = script_json({{"</script>", "<!--\xe2\x80\xa8"}});
  EXPECT_THAT(json, AllOf(Not(HasSubstr("<")), HasSubstr("\\u003c/script>"), HasSubstr("\\u2028")));
  EXPECT_EQ(nlohmann::json::parse(json).begin().key(), "</script>");
}

TEST(PageText, NumbersAndBytes) {
  EXPECT_EQ(number_text(3.21654), "3.217");
  EXPECT_EQ(number_text(std::nan("")), "not finite");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1536.0 * 1024 * 1024), "1.50 GiB");
}

TEST_F(ReportPage, HoldsHostileNamesAsText) {
  const std::string run = write_run("</script><img src=x onerror=alert(1)>", line(1, "\"loss\":1"),
                                    R"({"config": {"model_path": "a/</title><script>alert(2)</script>"}})");
  const std::string page = report_page(read_runs({run}), "");
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<img")), Not(HasSubstr("<script>alert"))));
  EXPECT_THAT(report_page(read_runs({run}), "<b>mine</b>"), HasSubstr("<title>&lt;b&gt;mine&lt;/b&gt;</title>"));
}

// ---------------------------------------------------------------- the trace

std::string range(int rank, const std::string& kind, const std::string& name, double begin, double length) {
  const int row = kind == "step" ? 1 : kind == "gather" ? 2001 : kind == "reduce" ? 4001 : 1001;
  return nlohmann::json{
      {"ph", "X"},   {"pid", rank},       {"tid", row},          {"name", name},
      {"cat", kind}, {"ts", begin * 1e3}, {"dur", length * 1e3}, {"args", {{"unit", name}, {"pass", "forward"}}}}
      .dump();
}

std::string counter(int rank, double at, double shards, double other) {
  return nlohmann::json{{"ph", "C"},
                        {"pid", rank},
                        {"ts", at * 1e3},
                        {"name", "memory"},
                        {"args", {{"parameter shards", shards}, {"everything else", other}}}}
      .dump();
}

std::string trace_file(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) text += (text.empty() ? "" : ",\n") + event;
  return "{\"traceEvents\": [\n" + text + "\n]}\n";
}

TEST(StepTimeline, IsTheLastWholeStep) {
  testing::TemporaryFolder folder;
  const std::string path = folder.write(
      "t",
      trace_file({range(0, "step", "optimizer", 8, 2), range(0, "step", "forward", 10, 5),
                  range(0, "compute", "a", 9, 3), range(0, "wait", "a", 11, 0.5), range(0, "compute", "b", 12, 4),
                  range(0, "gather", "a", 10, 4), range(0, "gather", "b", 12, 4), range(0, "step", "optimizer", 18, 2),
                  range(0, "compute", "next", 21, 1), range(1, "reduce", "a", 15, 2), counter(0, 5, 1, 2),
                  counter(0, 9, 100, 20), counter(0, 14, 70, 90), counter(0, 25, 1e6, 1e6)}));
  const auto step = read_step_timeline(path);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->length_ms, 10);
  ASSERT_EQ(step->ranks.size(), 2);
  const RankTimeline& rank = step->ranks[0];
  EXPECT_EQ(rank.busy_ms("compute"), 6) << "cut at the step's begin, without what comes behind it";
  EXPECT_EQ(rank.busy_ms("wait"), 0.5);
  EXPECT_EQ(rank.busy_ms("gather"), 6) << "what overlaps counts once";
  EXPECT_EQ(step->ranks[1].busy_ms("reduce"), 2);
  EXPECT_THAT(rank.categories, ElementsAre("parameter shards", "everything else, above its minimum"));
  ASSERT_EQ(rank.memory.size(), 2);
  EXPECT_EQ(rank.memory[0].at_ms, 0) << "as it was when the step began";
  EXPECT_THAT(rank.memory[0].bytes, ElementsAre(100, 0));
  EXPECT_EQ(rank.constant_bytes, 20);
  EXPECT_EQ(rank.memory[1].at_ms, 4);
  EXPECT_EQ(rank.peak_bytes(0), 100);
  EXPECT_EQ(rank.peak_bytes(), 160);
  EXPECT_THAT(cells_of(memory_table(*step), "everything else, above its minimum"), ElementsAre("70 B", "–"));
  EXPECT_THAT(cells_of(memory_table(*step), "all at once"), ElementsAre("160 B", "0 B"));
  EXPECT_THAT(cells_of(step_table(*step), "0"), ElementsAre("6 ms", "0.5 ms", "5.0 %", "6 ms", "0 ms"));
}

TEST(StepTimeline, NeedsAStepAndATrace) {
  testing::TemporaryFolder folder;
  EXPECT_FALSE(read_step_timeline(folder.write("t", trace_file({range(0, "compute", "a", 0, 1)}))));
  EXPECT_FALSE(read_step_timeline(folder.write("t", trace_file({}))));
  const auto error_of = [&](const std::string& text) {
    try {
      read_step_timeline(folder.write("t", text));
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of("{"), HasSubstr(folder.path("t") + ":1:"));
  EXPECT_THAT(error_of("[]"), HasSubstr(folder.path("t") + ": is not a trace"));
  EXPECT_THAT(error_of(trace_file({R"({"ph": "X", "pid": 0})"})), HasSubstr("is not a trace"));
  EXPECT_THAT(error_of(trace_file({R"({"ph": 3, "pid": 0})"})), HasSubstr("is not a trace"));
}

// Inputs that the fuzz target has found.
TEST(StepTimeline, NumbersThatNoTraceHasAreErrors) {
  testing::TemporaryFolder folder;
  const auto error_of = [&](const std::string& event) -> std::string {
    try {
      read_step_timeline(folder.write("t", trace_file({range(0, "step", "optimizer", 0, 1), event})));
      return "";
    } catch (const FileError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error_of(range(0, "compute", "a", 0, 1)), "");
  EXPECT_THAT(error_of(R"({"ph": "X", "pid": 1e300})"),
              HasSubstr("is not a trace of fsdp train: an event's \"pid\" is not"));
  EXPECT_THAT(error_of(range(0, "compute", "a", 1, -1)), HasSubstr("\"dur\" is negative"));
  nlohmann::json memory{{"ph", "C"}, {"pid", 0}, {"ts", 1}};
  for (int i = 0; i < 64; ++i) memory["args"][std::to_string(i)] = 1;
  EXPECT_EQ(error_of(memory.dump()), "");
  memory["args"]["one more"] = 1;
  EXPECT_THAT(error_of(memory.dump()), HasSubstr("more than 64 categories"));
}

TEST_F(ReportPage, FactsThatNoRunHas) {
  const auto facts = nlohmann::json{{"ranks", -1}, {"config", {{"trace_path", std::string(300, 'a')}}}};
  const auto runs = read_runs({write_run("run", line(1, "\"loss\":1"), facts.dump())});
  EXPECT_FALSE(runs[0].ranks);
  EXPECT_THAT(runs[0].no_step, HasSubstr("does not exist"));
}

TEST_F(ReportPage, ATraceThatIsGoneIsSaid) {
  const std::string run = write_run("run", line(1, "\"loss\":1"), R"({"config": {"trace_path": "/nowhere/t.json"}})");
  EXPECT_THAT(report_page(read_runs({run}), ""), HasSubstr("the trace /nowhere/t.json does not exist"));
  folder_.write("run/t.json", trace_file({range(0, "step", "optimizer", 0, 1)}));
  EXPECT_THAT(report_page(read_runs({run}), ""), HasSubstr("step-0-timeline")) << "found in the run's folder";
}

// ---------------------------------------------------------------- the command

TEST_F(ReportPage, TheCommandWritesOnePage) {
  write_run("a", line(1, "\"loss\":1"));
  write_run("b", line(1, "\"loss\":2"));
  const std::string here = "cd " + folder_.path("") + " && ";
  EXPECT_EQ(run_shell(here + "$FSDP report a").out, "wrote a/report.html\n");
  EXPECT_THAT(folder_.read("a/report.html"), HasSubstr("<title>a</title>"));
  EXPECT_EQ(run_shell(here + "$FSDP report a b --title both").out, "wrote report.html\n");
  EXPECT_THAT(folder_.read("report.html"), AllOf(HasSubstr("<title>both</title>"), HasSubstr("(×2)")));
  const std::string unmade = run_shell(here + "$FSDP report a b --out new/c.html").err;
  EXPECT_EQ(unmade, "fsdp report: new/c.html: there is no folder new; create it, or name another --out\n");
  EXPECT_EQ(run_shell(here + "mkdir new && $FSDP report a b --out new/c.html").out, "wrote new/c.html\n");
  EXPECT_EQ(folder_.read("new/c.html").size(),
            folder_.read("report.html").size() - 2 * std::string("both").size() + 2 * std::string("a, b").size());
}

TEST_F(ReportPage, MistakesOnTheCommandLine) {
  EXPECT_EQ(run_shell("$FSDP report").status, 2);
  const ProgramResult unknown = run_shell("$FSDP report a --format pdf");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--format"));
  const ProgramResult missing = run_shell("$FSDP report " + folder_.path("nowhere"));
  EXPECT_EQ(missing.status, 1);
  EXPECT_EQ(missing.err, "fsdp report: " + folder_.path("nowhere") + ": no such folder\n");
  const ProgramResult help = run_shell("$FSDP report --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("--out"), HasSubstr("output/report.html"), Not(HasSubstr("adam_beta1"))));
}

}  // namespace
}  // namespace fsdp::trainer::report_page_test
