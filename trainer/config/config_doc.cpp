#include "config/config_doc.h"

#include <c10/util/StringUtil.h>

#include <sstream>

#include "config/config_schema.h"

namespace fsdp::trainer {

namespace {

std::string default_text(const ConfigKey& key) { return value_of(key, Config{}).dump(); }

// Returns `text` in lines of at most `width` characters, each after `indent` spaces.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string result;
  std::string line;
  std::istringstream words(text);
  const auto flush = [&] { result += std::string(indent, ' ') + line + "\n"; };
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > width - indent) {
      flush();
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  flush();
  return result;
}

// Calls `begin_section` at the start of each section, and `visit_key` for each key, in order.
template <typename BeginSection, typename Key>
void walk(BeginSection begin_section, Key visit_key) {
  std::string section;
  for (const ConfigKey& key : config_schema()) {
    if (key.section != section) begin_section(section = key.section);
    visit_key(key);
  }
}

std::string in_table(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

}  // namespace

std::string config_help() {
  std::string help = "Keys of the config file, one JSON object; each may also be given as --set KEY=VALUE.\n";
  walk([&](const std::string& section) { help += c10::str("\n", section, ":\n"); },
       [&](const ConfigKey& key) {
         help += c10::str("  ", key.name, " (", type_name(key), "; default: ", default_text(key), ")\n");
         help += wrapped(c10::str(key.meaning, " Accepted: ", accepted_values(key), "."), 6, 100);
       });
  return help;
}

std::string config_markdown() {
  std::string text;
  walk(
      [&](const std::string& section) {
        text += c10::str(text.empty() ? "" : "\n", "### ", section, "\n\n");
        text += "| Key | Type | Default | Accepted | Meaning |\n| --- | --- | --- | --- | --- |\n";
      },
      [&](const ConfigKey& key) {
        text += c10::str("| `", key.name, "` | ", type_name(key), " | `", default_text(key), "` | ",
                         in_table(accepted_values(key)), " | ", in_table(key.meaning), " |\n");
      });
  return text;
}

}  // namespace fsdp::trainer
