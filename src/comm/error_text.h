// The essential part of the message of another library's error.
#pragma once

#include <exception>
#include <string>

#include "base/error_message.h"

namespace fsdp::comm {

// The first line of the message, without a backtrace.
inline std::string first_line(const std::exception& error) {
  const std::string text = base::message_of(error);
  return text.substr(0, text.find('\n'));
}

}  // namespace fsdp::comm
