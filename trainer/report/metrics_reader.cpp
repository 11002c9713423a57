#include "report/metrics_reader.h"

#include <c10/util/StringUtil.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/error_message.h"
#include "formats/common/json_text.h"
#include "fsdp/errors.h"

namespace fsdp::trainer {

namespace {

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) throw FileError(path + ": cannot read: " + std::strerror(errno));
  return text;
}

// Parses one line. Errors begin with `where`: the file and the line number.
nlohmann::json parse(const std::string& text, const std::string& where) {
  try {
    return formats::parse_json(text, "");
  } catch (const std::exception& error) {
    constexpr std::string_view kFirstLine = ":1";  // position in `text`; the column follows
    throw FileError(where + base::message_of(error).substr(kFirstLine.size()));
  }
}

MetricsLine line_of(const std::string& text, const std::string& where) {
  MetricsLine line{.values = parse(text, where)};
  const auto refuse = [&](const std::string& what) { throw FileError(where + ": " + what); };
  if (!line.values.is_object()) refuse("is not a JSON object: " + formats::json_text(line.values));
  const auto step = line.values.find("step");
  if (step == line.values.end() || !step->is_number_integer() || step->get<double>() < 0 ||
      step->get<double>() > 9.2e18) {
    refuse("\"step\" is not an integer >= 0");
  }
  line.step = step->get<int64_t>();
  for (const auto& [key, value] : line.values.items()) {
    if (value.is_number() || value.is_boolean() || value.is_null()) continue;
    refuse(formats::quoted_name(key) + " is neither a number nor true, false or null");
  }
  return line;
}

// Whether `line` invalidates `earlier`. The line of an evaluation follows the line of its step.
bool takes_back(const MetricsLine& line, const MetricsLine& earlier) {
  if (earlier.step != line.step) return earlier.step > line.step;
  return earlier.is_evaluation() || !line.is_evaluation();
}

}  // namespace

std::vector<MetricsLine> read_metrics(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<MetricsLine> lines;
  size_t begin = 0;
  int64_t number = 1;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1, ++number) {
    MetricsLine line = line_of(text.substr(begin, end - begin), c10::str(path, ":", number));
    while (!lines.empty() && takes_back(line, lines.back())) lines.pop_back();
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace fsdp::trainer
