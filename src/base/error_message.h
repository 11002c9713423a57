// What an error says.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace fsdp {

// Without the backtrace that what() of LibTorch's errors has: to put names to it takes tens of milliseconds, at every
// call of what() that is the first for an error.
inline std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace fsdp
