// Errors that end a command.
#pragma once

#include <exception>

namespace fsdp::trainer {

// Returns kExitUsage for a ConfigError, otherwise kExitFailure.
int exit_status_of(const std::exception& error);

// Prints the message to stderr and returns the exit status.
int report_error(const std::exception& error);

}  // namespace fsdp::trainer
