// The schema in words: for --help and for docs/config.md.
#pragma once

#include <string>

namespace fsdp::trainer {

// Returns every key with type, default, accepted values and meaning, for a terminal.
std::string config_help();
// Returns the same text as Markdown tables, one for each section of keys.
std::string config_markdown();

}  // namespace fsdp::trainer
