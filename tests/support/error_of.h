// Captures the error of an action in a test.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <functional>
#include <string>

namespace fsdp::testing {

// Returns the message of the error that `action` throws, without a backtrace, or "no error" if it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace fsdp::testing
