#include "fsdp/load_report.h"

#include <utility>

namespace fsdp {

Rename rename_by(std::map<std::string, std::string> names) {
  return [names = std::move(names)](const std::string& name) {
    const auto found = names.find(name);
    return found == names.end() ? name : found->second;
  };
}

Rename replace_prefix(std::string from, std::string to) {
  return [from = std::move(from), to = std::move(to)](const std::string& name) {
    return name.rfind(from, 0) == 0 ? to + name.substr(from.size()) : name;
  };
}

std::string LoadReport::text() const {
  std::string lines;
  for (const std::string& name : missing) lines += "\n  missing: " + name;
  for (const std::string& name : unexpected) lines += "\n  unexpected: " + name;
  for (const Mismatch& entry : mismatched) {
    lines += "\n  differs: " + entry.name + " is " + entry.given + ", expected " + entry.expected;
  }
  return lines;
}

}  // namespace fsdp
