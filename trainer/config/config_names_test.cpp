// Tests the tables of names: each value has one name, by which it is found again.
#include "config/config_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "config/config_schema.h"
#include "support/faults/error_of.h"

namespace fsdp::trainer::config_names_test {
namespace {

using ::testing::ElementsAre;

template <typename Enum>
class ConfigNamesTest : public ::testing::Test {};
using Enumerations = ::testing::Types<LrSchedulerType, AttentionMask, sparse::RowRule, c10::ScalarType, DeviceChoice,
                                      ShardingStrategy, UnitsBy, BackwardPrefetch, CollectiveCheckLevel, ReportTo>;
TYPED_TEST_SUITE(ConfigNamesTest, Enumerations);

TYPED_TEST(ConfigNamesTest, NamesAndValuesAreOneToOne) {
  std::set<std::string> names;
  std::set<TypeParam> values;
  for (const auto& [value, name] : ConfigNames<TypeParam>::kTable) {
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(values.insert(value).second) << name;
    EXPECT_EQ(config_name(value), name);
    EXPECT_EQ(from_config_name<TypeParam>(name), value);
  }
  EXPECT_EQ(names.count(""), 0U);
}

TEST(ConfigNames, AreInTheOrderOfTheDocumentation) {
  EXPECT_THAT(config_names<LrSchedulerType>(), ElementsAre("constant", "linear", "cosine"));
  EXPECT_EQ(accepted_values(*find_config_key("lr_scheduler_type")), "constant, linear or cosine");
}

TEST(ConfigNames, OthersAreErrors) {
  EXPECT_EQ(testing::error_of([] { from_config_name<DeviceChoice>("tpu"); }),
            "an enumeration of the config has no value named \"tpu\"");
  EXPECT_EQ(testing::error_of([] { config_name(c10::kLong); }),
            "an enumeration of the config has no name for its value 4");
}

}  // namespace
}  // namespace fsdp::trainer::config_names_test
