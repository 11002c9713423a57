// For tests: runs the program `fsdp` as a user does.
#pragma once

#include <string>

namespace fsdp::trainer {

struct ProgramResult {
  int status = -1;  // 124 if it was ended after five minutes
  std::string out;
  std::string err;
};

// Runs a shell command line in which $FSDP is the program, with the variables of other launchers unset.
ProgramResult run_shell(const std::string& line);

}  // namespace fsdp::trainer
