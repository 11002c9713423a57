// Tests that help and documentation are derived from the schema and agree with it.
#include "config/config_doc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "config/config_schema.h"
#include "support/files/project_paths.h"

namespace fsdp::trainer::config_doc_test {
namespace {

using ::testing::HasSubstr;

TEST(ConfigDoc, HelpListsEveryKeyWithTypeDefaultAndMeaning) {
  const std::string help = config_help();
  for (const ConfigKey& key : config_schema()) {
    const std::string default_text = "default: " + value_of(key, Config{}).dump();
    EXPECT_THAT(help, HasSubstr("  " + key.name + " (" + type_name(key) + "; " + default_text + ")\n"));
    EXPECT_THAT(help, HasSubstr(key.meaning.substr(0, 30)));
  }
}

TEST(ConfigDoc, DocsHoldTheTablesOfTheSchema) {
  std::ifstream file(testing::source_folder() + "/docs/config.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str().find(config_markdown()), std::string::npos)
      << "docs/config.md is out of date: put the output of `fsdp config-doc` between its two markers";
}

}  // namespace
}  // namespace fsdp::trainer::config_doc_test
