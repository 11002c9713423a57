#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "planner/report/plan_text.h"
#include "planner/report/text_row.h"
#include "planner/search/search_document.h"
#include "report_page/page_text.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

// More rows are in the JSON: of these, the first and the last are shown, and some between.
constexpr size_t kRows = 20;

std::string plans_line(const ordered_json& search) {
  const ordered_json& counts = search.at("counts");
  return c10::str(counts.at("planned").get<size_t>(), " candidates planned in ",
                  fixed_text(search.at("seconds").get<double>(), 0), " s, ", search.at("at_once").get<size_t>(),
                  " at a time: ", counts.at("fit").get<size_t>(), " fit, ", counts.at("tight").get<size_t>(),
                  " are tight, ", counts.at("do_not_fit").get<size_t>(), " do not fit\n");
}

std::string unplanned_line(const ordered_json& search) {
  const ordered_json& counts = search.at("counts");
  std::vector<std::string> parts;
  const auto add = [&](const char* key, const char* why) {
    if (const auto count = counts.at(key).get<size_t>(); count > 0) parts.push_back(c10::str(count, why));
  };
  add("skipped", " were not planned, since their shards alone do not fit");
  add("refused", " are refused by the config or the model");
  add("failed", " failed");
  if (parts.empty()) return "";
  std::string line = "of the combinations of choices, " + c10::Join("; ", parts) + "\n";
  if (search.contains("first_failure"))
    line += "the first failure: " + search["first_failure"].get<std::string>() + "\n";
  return line;
}

std::string rules_lines(const ordered_json& search) {
  const ordered_json& samples = search.at("samples_per_step");
  std::string text = samples.is_null()
                         ? "the samples of a step follow the micro-batch\n"
                         : c10::str("all have the ", samples.get<int64_t>(), " samples of the config's step\n");
  if (search.at("compared") == "train_batch_size") {
    text +=
        "plans for this cluster have no times: the largest micro-batch comes first, which need not be the fastest\n";
  }
  if (search.at("is_cut").get<bool>()) {
    text += c10::str("the search ended at its limit of ", search.at("limit").get<size_t>(),
                     " plans; a larger --search-limit looks further\n");
  }
  return text;
}

std::string speed_text(const ordered_json& row) {
  if (row.contains("tokens_per_second")) return fixed_text(row["tokens_per_second"].get<double>(), 0);
  return row.contains("samples_per_second") ? fixed_text(row["samples_per_second"].get<double>(), 1) : "";
}

std::string columns(const std::string& speed, const std::string& step, const std::string& device,
                    const std::string& host, const std::string& batch) {
  std::ostringstream line;
  for (const std::string& column : {speed, step, device, host, batch}) {
    if (!column.empty()) line << std::setw(14) << column;
  }
  return line.str() + "\n";
}

std::string column_heads(const ordered_json& search, const ordered_json& row) {
  const std::string& compared = search.at("compared").get_ref<const std::string&>();
  const std::string speed = compared == "tokens_per_second"    ? "tokens/s"
                            : compared == "samples_per_second" ? "samples/s"
                                                               : "";
  return columns(speed, row.contains("step_seconds") ? "s/step" : "", row.contains("device") ? "device" : "", "host",
                 "batch");
}

std::string set_text(const ordered_json& row) {
  if (row.at("set").empty()) return "    the config as it is\n";
  std::string text = "   ";
  for (const ordered_json& one : row["set"]) text += " --set " + one.get<std::string>();
  return text + "\n";
}

std::string row_text(const ordered_json& row) {
  const auto size = [&](const char* key) {
    return row.contains(key) ? trainer::bytes_text(row[key].get<double>()) : std::string();
  };
  const std::string step = row.contains("step_seconds") ? fixed_text(row["step_seconds"].get<double>(), 3) : "";
  const auto passes = row.at("gradient_accumulation_steps").get<int64_t>();
  const std::string batch =
      c10::str(row.at("train_batch_size").get<int64_t>(), passes > 1 ? c10::str(" x ", passes) : "");
  return columns(speed_text(row), step, size("device"), size("host"), batch) + set_text(row);
}

std::string section(const std::string& title, const ordered_json& search, const ordered_json& rows) {
  if (rows.empty()) return "";
  std::string text = "\n" + title + "\n" + column_heads(search, rows.front());
  const size_t shown = std::min(rows.size(), kRows);
  for (size_t i = 0; i < shown; ++i) text += row_text(rows[shown == 1 ? 0 : i * (rows.size() - 1) / (shown - 1)]);
  if (rows.size() > shown) text += c10::str("  and ", rows.size() - shown, " between these; --json has all\n");
  return text;
}

}  // namespace

std::string search_text(const ordered_json& document) {
  const ordered_json& search = document.at("search");
  std::string text = plan_head(document) + plans_line(search) + unplanned_line(search) + rules_lines(search);
  const ordered_json& config = search.at("config");
  text +=
      section("the config as it is: " + config.at("verdict").get<std::string>(), search, ordered_json::array({config}));
  text += section("fits: none of these is beaten in speed and in both memories", search, search.at("front"));
  text += section("tight: faster, or with less memory, but hardly any to spare", search, search.at("tight"));
  if (search.contains("nearest")) {
    text += section("nothing fits; this comes nearest", search, ordered_json::array({search["nearest"]}));
  }
  return text;
}

}  // namespace fsdp::planner
