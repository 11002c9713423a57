// Pieces of errors' texts: the essential part of another library's error, and times.
#pragma once

#include <chrono>
#include <exception>
#include <string>

#include "base/error_message.h"

namespace fsdp::comm {

// The first line of the message, without a backtrace.
inline std::string first_line(const std::exception& error) {
  const std::string text = base::message_of(error);
  return text.substr(0, text.find('\n'));
}

inline double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace fsdp::comm
