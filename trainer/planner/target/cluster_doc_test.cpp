// docs/cluster.md agrees with the table of keys.
#include "planner/target/cluster_doc.h"

#include <gmock/gmock.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "planner/target/cluster_file.h"
#include "support/files/project_paths.h"

namespace fsdp::planner::cluster_doc_test {
namespace {

std::string page() {
  std::ifstream file(testing::source_folder() + "/docs/cluster.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ClusterDoc, ThePageHasTheTableOfTheKeys) {
  EXPECT_THAT(page(), ::testing::HasSubstr(cluster_markdown()))
      << "docs/cluster.md is out of date: put the output of `fsdp cluster-doc` between its two markers";
}

TEST(ClusterDoc, TheExamplesCanBeRead) {
  const std::string text = page();
  const std::regex block("```json\n([^`]*)```");
  const std::sregex_iterator examples(text.begin(), text.end(), block);
  ASSERT_NE(examples, std::sregex_iterator());
  for (auto example = examples; example != std::sregex_iterator(); ++example) {
    EXPECT_NO_THROW(read_cluster(nlohmann::json::parse((*example)[1].str()), "docs/cluster.md"));
  }
}

}  // namespace
}  // namespace fsdp::planner::cluster_doc_test
