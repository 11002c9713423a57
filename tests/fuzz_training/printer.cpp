#include "fuzz_training/printer.h"

#include <sstream>

namespace fsdp::fuzz {

std::string failure_text(uint64_t seed, const Case& training, const Verdict& verdict) {
  std::ostringstream text;
  text << "seed " << seed << " failed: " << verdict.way << "\n"
       << "  " << verdict.text << "\n"
       << "  fuzz_training --case '" << to_json(training).dump() << "'\n";
  return text.str();
}

}  // namespace fsdp::fuzz
