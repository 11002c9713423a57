// Captures the error of an action in a test.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <functional>
#include <string>

namespace fsdp::testing {

// The result of error_of if there is no error.
inline constexpr const char* kNoError = "no error";

// Returns the message of the error that `action` throws, without a backtrace, or kNoError if it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return kNoError;
}

}  // namespace fsdp::testing
