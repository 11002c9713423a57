#include "planner/report/pretty_json.h"

#include <algorithm>

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

std::string in_one_line(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void write_pretty(const ordered_json& value, const std::string& indent, std::string& out);

void write_members(const ordered_json& value, const std::string& indent, std::string& out) {
  bool first = true;
  for (const auto& [name, member] : value.items()) {
    out += (first ? "\n" : ",\n") + indent;
    if (value.is_object()) out += in_one_line(name) + ": ";
    write_pretty(member, indent, out);
    first = false;
  }
}

void write_pretty(const ordered_json& value, const std::string& indent, std::string& out) {
  const bool flat =
      std::none_of(value.begin(), value.end(), [](const ordered_json& item) { return item.is_structured(); });
  if (!value.is_structured() || value.empty()) {
    out += in_one_line(value);
  } else if (value.is_array() && flat) {
    const char* separator = "[";
    for (const ordered_json& item : value) {
      out += separator + in_one_line(item);
      separator = ", ";
    }
    out += ']';
  } else {
    out += value.is_object() ? "{" : "[";
    write_members(value, indent + "  ", out);
    out += "\n" + indent + (value.is_object() ? "}" : "]");
  }
}

}  // namespace

std::string pretty_json(const ordered_json& value) {
  std::string out;
  write_pretty(value, "", out);
  return out + "\n";
}

}  // namespace fsdp::planner
