#include "commands/command_error.h"

#include <cstdio>

#include "base/error_message.h"
#include "config/errors.h"
#include "report/failure_report.h"

namespace fsdp::trainer {

int exit_status_of(const std::exception& error) {
  return dynamic_cast<const ConfigError*>(&error) ? kExitUsage : kExitFailure;
}

int report_error(const std::exception& error) {
  std::fprintf(stderr, "%s%s\n", kErrorPrefix, base::message_of(error).c_str());
  return exit_status_of(error);
}

}  // namespace fsdp::trainer
