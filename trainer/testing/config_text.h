// For tests: configs as a user writes them, and the errors that they give.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/config_reader.h"
#include "config/errors.h"
#include "support/files/temporary_folder.h"

namespace fsdp::trainer {

class ConfigText : public ::testing::Test {
 protected:
  Config read(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return read_config(folder_.write("config.json", text), overrides);
  }
  std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
      read(text, overrides);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  // Returns the error of a config in which `member` ("\"key\": value") follows "model_path".
  std::string error_with(const std::string& member) { return error_of("{\"model_path\": \"m\",\n " + member + "}"); }

  testing::TemporaryFolder folder_;
};

}  // namespace fsdp::trainer
