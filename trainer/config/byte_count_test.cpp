// Tests numbers of bytes as people write them.
#include "config/byte_count.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

namespace fsdp::trainer::byte_count_test {
namespace {

TEST(ByteCount, NumbersAndUnits) {
  EXPECT_EQ(parse_byte_count("7"), 7);
  EXPECT_EQ(parse_byte_count("5GB"), 5'000'000'000);
  EXPECT_EQ(parse_byte_count("3KB"), 3000);
  EXPECT_EQ(parse_byte_count("3kB"), 3000);
  EXPECT_EQ(parse_byte_count("200MiB"), int64_t{200} << 20);
  EXPECT_EQ(parse_byte_count("9223372036854775807"), std::numeric_limits<int64_t>::max());
  for (const char* wrong : {"", "0", "-1", "GB", "5 GB", "5gb", "5GBs", "1.5GB", "9223372036854775808", "9223373TB"}) {
    EXPECT_EQ(parse_byte_count(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace fsdp::trainer::byte_count_test
