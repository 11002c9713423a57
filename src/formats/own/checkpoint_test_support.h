// Helpers for tests of files: the text of an error, and the contents of formats/common/test_files.h.
#pragma once

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "formats/common/test_files.h"

namespace fsdp::formats {

// Returns the message of the error that `action` throws, or an empty string if it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace fsdp::formats
