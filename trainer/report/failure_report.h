// How a rank tells the world why it ends.
#pragma once

#include <string>

namespace fsdp::trainer {

// Prints "rank R: MESSAGE" (a message that starts with "rank R" as it is) to stderr in one write, so that lines of
// several ranks do not mix. Under torchrun it also writes the message to the file that TORCHELASTIC_ERROR_FILE names,
// from where torchrun shows it as the root cause.
void report_failure(int rank, const std::string& message);

}  // namespace fsdp::trainer
