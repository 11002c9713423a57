#include "report/metrics_reader.h"

#include <c10/util/StringUtil.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "checkpoint/json_text.h"

namespace fsdp::trainer {

namespace {

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) throw std::runtime_error(path + ": cannot read: " + std::strerror(errno));
  return text;
}

// Errors start with the column, "5: what is wrong".
nlohmann::json parse(const std::string& text) {
  try {
    return checkpoint::parse_json(text, "");
  } catch (const std::exception& error) {
    const std::string without_source = std::string(":1:");
    throw std::runtime_error(std::string(error.what()).substr(without_source.size()));
  }
}

MetricsLine line_of(const std::string& text) {
  MetricsLine line{.values = parse(text)};
  if (!line.values.is_object()) throw std::runtime_error("is no JSON object: " + checkpoint::json_text(line.values));
  const auto step = line.values.find("step");
  if (step == line.values.end() || !step->is_number_integer() || step->get<double>() < 0 ||
      step->get<double>() > 9.2e18) {
    throw std::runtime_error("\"step\" is not an integer from 0 on");
  }
  line.step = step->get<int64_t>();
  for (const auto& [key, value] : line.values.items()) {
    if (value.is_number() || value.is_boolean() || value.is_null()) continue;
    throw std::runtime_error(checkpoint::quoted_name(key) + " is neither a number nor true, false or null");
  }
  return line;
}

// An evaluation stands behind the line of its step.
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
    MetricsLine line;
    try {
      line = line_of(text.substr(begin, end - begin));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(c10::str(path, ":", number, ": ", error.what()));
    }
    while (!lines.empty() && takes_back(line, lines.back())) lines.pop_back();
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace fsdp::trainer
