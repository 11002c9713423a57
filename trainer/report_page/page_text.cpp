#include "report_page/page_text.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace fsdp::trainer {

namespace {

std::string formatted(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

}  // namespace

// Replaces bytes that are not UTF-8 by U+FFFD, as browsers do.
std::string html_text(std::string_view text) {
  const std::string json = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto valid = nlohmann::json::parse(json).get<std::string>();
  std::string escaped;
  for (const char c : valid) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      case '\0':
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string script_json(const nlohmann::ordered_json& data) {
  const std::string json = data.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  std::string escaped;
  for (const char c : json) {
    if (c == '<') {
      escaped += "\\u003c";  // always inside a string: JSON has no other '<'
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string number_text(double value) { return std::isfinite(value) ? formatted("%.4g", value) : "not finite"; }

std::string bytes_text(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (!std::isfinite(bytes)) return number_text(bytes);
  size_t unit = 0;
  for (; std::abs(bytes) >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return formatted(unit == 0 ? "%.0f " : "%.2f ", bytes) + kUnits[unit];
}

}  // namespace fsdp::trainer
