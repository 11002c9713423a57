// Reports why a rank ends.
#pragma once

#include <stdexcept>
#include <string>

#include "fsdp/communicator.h"

namespace fsdp::trainer {

// The beginning of an error of the program, or of the only rank of a run.
inline constexpr const char* kErrorPrefix = "fsdp: error: ";

// Prints "rank R: MESSAGE" to stderr in one write, so that lines of several ranks do not mix; a message that starts
// with "rank R" is printed as it is. The only rank of a run prints "fsdp: error: MESSAGE". Under torchrun, also writes
// the message to the file that TORCHELASTIC_ERROR_FILE names, from which torchrun shows it as the root cause.
void report_failure(int rank, int world_size, const std::string& message);

// Reports an error that all ranks have: prints "all ranks: MESSAGE" on the first rank of each host. When it returns on
// a rank, all ranks have printed, so that the end of one rank does not end another rank first. Collective.
void report_failure_of_all(Communicator& ranks, int local_rank, const std::string& message);

// An error that was already printed.
struct ReportedFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Writes the message to the file for torchrun, as report_failure does, but prints nothing.
void record_failure(const std::string& message);

}  // namespace fsdp::trainer
