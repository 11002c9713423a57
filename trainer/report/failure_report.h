// How a rank tells the world why it ends.
#pragma once

#include <stdexcept>
#include <string>

#include "fsdp/communicator.h"

namespace fsdp::trainer {

// Prints "rank R: MESSAGE" (a message that starts with "rank R" as it is) to stderr in one write, so that lines of
// several ranks do not mix. Under torchrun it also writes the message to the file that TORCHELASTIC_ERROR_FILE names,
// from where torchrun shows it as the root cause.
void report_failure(int rank, const std::string& message);

// Of an error that all ranks have alike: prints "all ranks: MESSAGE" on the first rank of each host. When it returns on
// a rank, all have printed theirs, so that the end of one does not end another before. Collective.
void report_failure_of_all(Communicator& ranks, int local_rank, const std::string& message);

// An error that was printed.
struct ReportedFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What report_failure does for torchrun, by itself.
void record_failure(const std::string& message);

}  // namespace fsdp::trainer
