// Errors of the trainer that end the program with their own exit status.
#pragma once

#include <stdexcept>

namespace fsdp::trainer {

// Exit statuses of the program.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;  // something failed while running
inline constexpr int kExitUsage = 2;    // command line, config file or rank environment
inline constexpr int kExitTerminated =
    143;  // a signal came, and a checkpoint was saved; shells report this status for SIGTERM (128 + 15)

// The error of a wrong command line, config or rank environment: nothing was started. Exit status kExitUsage.
struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fsdp::trainer
