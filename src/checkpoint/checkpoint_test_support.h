// Helpers of the tests of files: the text of an error, and what test_files.h has.
#pragma once

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "checkpoint/test_files.h"

namespace fsdp::checkpoint {

// The message of the error that `action` throws; empty when it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace fsdp::checkpoint
