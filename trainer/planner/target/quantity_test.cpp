// Numbers with units.
#include "planner/target/quantity.h"

#include <gmock/gmock.h>

namespace fsdp::planner::quantity_test {
namespace {

using ::testing::HasSubstr;

double value_of(const nlohmann::json& value, Unit unit) {
  const Quantity quantity = quantity_of(value, unit);
  EXPECT_TRUE(quantity.value) << value << " " << quantity.complaint;
  return quantity.value.value_or(-1);
}

TEST(Quantity, NumbersAndTexts) {
  EXPECT_EQ(value_of(7, Unit::kBytes), 7);
  EXPECT_EQ(value_of("1.5GiB", Unit::kBytes), 1.5 * (1 << 30));
  EXPECT_EQ(value_of("79.18GiB", Unit::kBytes), 85'018'877'624);
  EXPECT_EQ(value_of(10.5, Unit::kBytes), 10);
  EXPECT_EQ(value_of("50 GB/s", Unit::kBytesPerSecond), 50e9);
  EXPECT_EQ(value_of("312TFLOP/s", Unit::kFlopsPerSecond), 312e12);
  EXPECT_EQ(value_of("3us", Unit::kSeconds), 3e-6);
  EXPECT_EQ(value_of(0.25, Unit::kNone), 0.25);
}

TEST(Quantity, ComplaintsSayWhatIsWrong) {
  EXPECT_THAT(quantity_of("400Gbit/s", Unit::kBytesPerSecond).complaint, HasSubstr("counts bits; it is \"50GB/s\""));
  EXPECT_THAT(quantity_of("100 Gbps", Unit::kBytesPerSecond).complaint, HasSubstr("\"12.5GB/s\""));
  EXPECT_THAT(quantity_of("640Gb", Unit::kBytes).complaint, HasSubstr("\"80GB\""));
  EXPECT_THAT(quantity_of("5GHz", Unit::kBytes).complaint, HasSubstr("no known unit (TiB, "));
  EXPECT_THAT(quantity_of("5", Unit::kBytes).complaint, HasSubstr("no known unit"));
  EXPECT_THAT(quantity_of("fast", Unit::kBytes).complaint, HasSubstr("begin with a number"));
  EXPECT_THAT(quantity_of("5", Unit::kNone).complaint, HasSubstr("is not a number"));
  EXPECT_THAT(quantity_of(true, Unit::kBytes).complaint, HasSubstr("is not a number"));
}

TEST(Quantity, TextsStandForExactlyTheValue) {
  EXPECT_EQ(quantity_json(50e9, Unit::kBytesPerSecond), "50GB/s");
  EXPECT_EQ(quantity_json(3e-6, Unit::kSeconds), "3us");
  EXPECT_EQ(quantity_json(0, Unit::kSeconds), 0);
  EXPECT_EQ(quantity_json(1 << 20, Unit::kBytes), "1MiB");
  EXPECT_EQ(quantity_json(85'018'894'828, Unit::kBytes), 85'018'894'828);
  EXPECT_EQ(quantity_json(0.1 + 0.2, Unit::kNone), 0.1 + 0.2);
}

}  // namespace
}  // namespace fsdp::planner::quantity_test
