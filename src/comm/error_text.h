// What an error of another library says, in the words that matter.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace fsdp {

// The first line of the message, without a backtrace.
inline std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace fsdp
