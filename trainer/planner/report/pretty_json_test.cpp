// JSON for people.
#include "planner/report/pretty_json.h"

#include <gtest/gtest.h>

namespace fsdp::planner::pretty_json_test {
namespace {

using nlohmann::ordered_json;

TEST(PrettyJson, ListsOfSingleValuesStayInOneLine) {
  const ordered_json value = {
      {"b", {1, "two", nullptr}}, {"a", {{"c", ordered_json::array()}}}, {"d", {{1, 2}, {3, 4}}}};
  EXPECT_EQ(pretty_json(value), R"({
  "b": [1, "two", null],
  "a": {
    "c": []
  },
  "d": [
    [1, 2],
    [3, 4]
  ]
}
)");
  EXPECT_EQ(ordered_json::parse(pretty_json(value)), value);
}

TEST(PrettyJson, AnyTextIsWritten) {
  EXPECT_EQ(pretty_json("a\"b\n\xff"), "\"a\\\"b\\n\xEF\xBF\xBD\"\n");
  EXPECT_EQ(pretty_json(0.5), "0.5\n");
}

}  // namespace
}  // namespace fsdp::planner::pretty_json_test
