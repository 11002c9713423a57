// Messages of exceptions.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace fsdp::base {

// Returns the error's message without the backtrace that what() of LibTorch's errors includes: the first call of what()
// on an error symbolizes the backtrace, which takes tens of milliseconds.
inline std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace fsdp::base
