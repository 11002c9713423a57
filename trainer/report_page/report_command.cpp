#include "report_page/report_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "base/error_message.h"
#include "config/errors.h"
#include "formats/common/output_file.h"
#include "report_page/page.h"
#include "report_page/page_file.h"
#include "report_page/run_data.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFooter =
    "The page needs no network and no other file. It holds a table that compares the runs; loss, gradient norm,\n"
    "learning rate, throughput, TFLOPS and memory over the steps; and, for each run with a trace (trace_path), the\n"
    "ranks' activity and memory during one step. Of two lines of metrics.jsonl for one step, the later one\n"
    "counts. A run that is still in progress works as well.\n\n"
    "  fsdp report output                              # output/report.html\n"
    "  fsdp report runs/fsdp runs/ddp --out both.html  # the second beside the first\n";

std::string target_of(const ReportCommand& command) {
  if (!command.out.empty()) return command.out;
  return command.folders.size() == 1 ? (fs::path(command.folders[0]) / "report.html").string() : "report.html";
}

}  // namespace

CLI::App* add_report(CLI::App& app, ReportCommand& command) {
  CLI::App* report = app.add_subcommand("report", "Turn the metrics of runs into one HTML page");
  report->footer(kFooter);
  report->add_option("output_dir", command.folders, "The output_dir of a run; several are compared with the first")
      ->required()
      ->type_name("FOLDER");
  report
      ->add_option("--out", command.out,
                   "The page; default: report.html in the run's folder or, for several runs, in the current folder")
      ->type_name("FILE");
  report->add_option("--title", command.title, "The page's title; default: the names of the runs")->type_name("TEXT");
  return report;
}

int run_report_command(const ReportCommand& command) {
  try {
    const std::string target = target_of(command);
    const std::vector<RunData> runs = read_runs(command.folders);
    check_folder_of_page(target, "--out");
    const std::string page = report_page(runs, command.title);
    formats::write_file(target, page);
    std::printf("wrote %s\n", target.c_str());
    return kExitSuccess;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp report: %s\n", base::message_of(error).c_str());
  }
  return kExitFailure;
}

}  // namespace fsdp::trainer
