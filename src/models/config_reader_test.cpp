#include "models/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "support/faults/error_of.h"

namespace fsdp::models::config_reader_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kNoError;
using ::testing::Optional;

// Returns the error of reading a key "k" with this value.
template <typename Read>
std::string error_of_value(const json& value, const Read& read) {
  const json object{{"k", value}};
  return error_of([&] { read(ConfigReader(object, "config.json")); });
}

TEST(ModelConfigReader, NullIsAbsentUnlessAskedFor) {
  const json object{{"null", nullptr}, {"zero", 0}};
  const ConfigReader reader(object, "config.json");
  EXPECT_FALSE(reader.has("null"));
  EXPECT_FALSE(reader.has("absent"));
  EXPECT_TRUE(reader.has("zero"));
  EXPECT_TRUE(reader.is_null("null"));
  EXPECT_FALSE(reader.is_null("absent"));
  EXPECT_FALSE(reader.is_null("zero"));
  EXPECT_EQ(reader.positive_integer("null", 3), 3);
  EXPECT_EQ(reader.integers("null", 0), std::nullopt);
  EXPECT_EQ(reader.choices("null", 1, {"a"}), std::nullopt);
  EXPECT_THAT(error_of([&] { reader.numbers("null", 1, 0, 1); }), HasSubstr("config.json: null is missing"));
}

TEST(ModelConfigReader, NumbersHaveACountAndARange) {
  const json object{{"mixed", {1, 2.5, 10}}, {"empty", json::array()}};
  const ConfigReader reader(object, "config.json");
  EXPECT_THAT(reader.numbers("mixed", 3, 1, 10), ElementsAre(1.0, 2.5, 10.0));
  EXPECT_THAT(reader.numbers("empty", 0, 1, 10), IsEmpty());
  EXPECT_THAT(error_of([&] { reader.numbers("absent", 2, 1, 10); }),
              HasSubstr("absent is missing; it must be a list of 2 numbers from 1 to 10"));
  const auto error = [](const json& value) {
    return error_of_value(value, [](const ConfigReader& wrong) { wrong.numbers("k", 2, 1, 10); });
  };
  EXPECT_EQ(error({1, 10}), kNoError);
  for (const json& value :
       {json{1}, json{1, 2, 3}, json{1, 0.999}, json{1, 10.5}, json{1, "2"}, json{1, nullptr},
        json{1, std::numeric_limits<double>::quiet_NaN()}, json(1), json("12"), json{{"a", 1}, {"b", 2}}}) {
    EXPECT_THAT(error(value), HasSubstr("; it must be a list of 2 numbers from 1 to 10")) << value;
  }
  EXPECT_THAT(error({1, 11}), HasSubstr("config.json: k is [1,11]; it must be"));
}

TEST(ModelConfigReader, IntegersHaveAMinimum) {
  const json object{{"list", {0, 3, 2147483647}}, {"negative", {-2}}, {"empty", json::array()}};
  const ConfigReader reader(object, "config.json");
  EXPECT_THAT(reader.integers("list", 0), Optional(ElementsAre(0, 3, 2147483647)));
  EXPECT_THAT(reader.integers("negative", -2), Optional(ElementsAre(-2)));
  EXPECT_THAT(reader.integers("empty", 0), Optional(IsEmpty()));
  EXPECT_EQ(reader.integers("absent", 0), std::nullopt);
  const auto error = [](const json& value) {
    return error_of_value(value, [](const ConfigReader& wrong) { wrong.integers("k", 1); });
  };
  EXPECT_EQ(error({1}), kNoError);
  for (const json& value : {json{1, 0}, json{-1}, json{1.0}, json{true}, json{nullptr}, json{uint64_t{1} << 31},
                            json{UINT64_MAX}, json(1), json{{"a", 1}}}) {
    EXPECT_THAT(error(value), HasSubstr("; it must be a list of integers from 1 to 2^31-1")) << value;
  }
}

TEST(ModelConfigReader, ChoicesHaveACountAndAcceptedNames) {
  const json object{{"names", {"b", "a", "b"}}};
  const ConfigReader reader(object, "config.json");
  EXPECT_THAT(reader.choices("names", 3, {"a", "b"}), Optional(ElementsAre("b", "a", "b")));
  EXPECT_EQ(reader.choices("absent", 3, {"a", "b"}), std::nullopt);
  const auto error = [](const json& value) {
    return error_of_value(value, [](const ConfigReader& wrong) { wrong.choices("k", 2, {"a", "b"}); });
  };
  EXPECT_EQ(error({"a", "a"}), kNoError);
  for (const json& value : {json{"a"}, json{"a", "b", "a"}, json{"a", "c"}, json{"a", 1}, json{"a", nullptr}, json("a"),
                            json{{"a", "a"}, {"b", "b"}}}) {
    EXPECT_THAT(error(value), HasSubstr("; it must be a list of 2, each one of: a, b")) << value;
  }
}

TEST(ModelConfigReader, UnreadKeysAreErrors) {
  const json object{{"model_type", "gemma"}, {"dtype", "bfloat16"}, {"use_cache", true},
                    {"null", nullptr},       {"read", 1},           {"asked", 2},
                    {"nullness", 3},         {"other", 4},          {"_model_name_or_path", "a run"}};
  const auto error = [&](const std::vector<std::string>& asked) {
    return error_of([&] {
      const ConfigReader reader(object, "config.json");
      reader.positive_integer("read");
      reader.has("asked");
      reader.is_null("nullness");
      for (const std::string& key : asked) reader.at(key);
      reader.refuse_unread("gemma", {"use_cache"});
    });
  };
  EXPECT_THAT(error({}), HasSubstr("config.json: other is 4; it must be absent: a model of type gemma does not"));
  EXPECT_EQ(error({"other"}), kNoError);
  EXPECT_EQ(error({"other", "absent"}), kNoError);
}

}  // namespace
}  // namespace fsdp::models::config_reader_test
