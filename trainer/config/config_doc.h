// The schema in words: for --help and for docs/config.md.
#pragma once

#include <string>

namespace fsdp::trainer {

// Every key with type, default, accepted values and meaning, for a terminal.
std::string config_help();
// The same as tables in Markdown, a section of keys each.
std::string config_markdown();

}  // namespace fsdp::trainer
