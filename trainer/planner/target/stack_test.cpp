// Stacks by name and from files.
#include "planner/target/stack.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "config/errors.h"
#include "support/files/temporary_folder.h"

namespace fsdp::planner::stack_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Value>
std::string refusal(const Value& value) {
  try {
    if constexpr (std::is_same_v<Value, json>) {
      read_stack(value, "it.json");
    } else {
      read_stack(value);
    }
  } catch (const trainer::ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Stack, TheDefaultIsOurs) {
  EXPECT_TRUE(read_stack("ours").is_ours());
  EXPECT_TRUE(read_stack(json::object(), "ours").is_ours());
  for (const Stack& stack : known_stacks()) {
    EXPECT_EQ(read_stack(stack.name), stack);
    EXPECT_EQ(stack.is_ours(), stack.name == "ours");
  }
}

TEST(Stack, AFileChangesItsBase) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("mine.json", R"({"base": "fsdp1", "host_per_kernel": "7us", "fusion": "modules",
      "attention_rate": 0.5, "skips_masked_keys": true, "optimizer_traffic": 2, "copies_gathers": true,
      "float8_products": true, "float8_gathers": true})");
  const Stack expected{.name = path,
                       .host_per_kernel = 7e-6,
                       .host_per_collective = read_stack("fsdp1").host_per_collective,
                       .fusion = Fusion::kModules,
                       .attention_rate = 0.5,
                       .skips_masked_keys = true,
                       .optimizer_traffic = 2,
                       .copies_gathers = true,
                       .float8_products = true,
                       .float8_gathers = true};
  EXPECT_EQ(read_stack(path), expected);
}

TEST(Stack, MistakesNameTheKeyAndTheAcceptedValues) {
  EXPECT_THAT(refusal(std::string("fsdp3")),
              AllOf(HasSubstr("\"fsdp3\""), HasSubstr("nearest"), HasSubstr("llm-foundry")));
  EXPECT_THAT(refusal(std::string("no-such.json")), HasSubstr("cannot open"));
  EXPECT_THAT(refusal(json{{"base", "fsdp3"}}), AllOf(HasSubstr("it.json"), HasSubstr("base"), HasSubstr("compiled")));
  EXPECT_THAT(refusal(json{{"base", 1}}), AllOf(HasSubstr("base"), HasSubstr("not a string")));
  EXPECT_THAT(refusal(json{{"fusoin", "all"}}), AllOf(HasSubstr("\"fusoin\""), HasSubstr("fusion")));
  EXPECT_THAT(refusal(json{{"fusion", "some"}}), AllOf(HasSubstr("\"some\""), HasSubstr("modules")));
  EXPECT_THAT(refusal(json{{"host_per_kernel", "5GB"}}), HasSubstr("host_per_kernel"));
  EXPECT_THAT(refusal(json{{"host_per_kernel", 2}}), HasSubstr("out of range"));
  EXPECT_THAT(refusal(json{{"attention_rate", 0}}), HasSubstr("out of range"));
  EXPECT_THAT(refusal(json{{"optimizer_traffic", "2"}}), HasSubstr("not a number"));
  EXPECT_THAT(refusal(json{{"float8_products", 1}}), HasSubstr("true or false"));
}

}  // namespace
}  // namespace fsdp::planner::stack_test
