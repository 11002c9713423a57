// Units as describe_units lists them.
#include "planner/report/units_document.h"

#include <gtest/gtest.h>

namespace fsdp::planner::units_document_test {
namespace {

TEST(UnitsDocument, AddsUpTheFlatParametersOfAUnit) {
  const nlohmann::ordered_json units = units_document(
      "2 units over 4 ranks, use_orig_params true\n"
      "unit '' FULL_SHARD (root)\n"
      "  trainable Float (gathered in BFloat16): 15 elements, padding 1, shard 4 x 4\n"
      "    weight [3, 5] at 0: rank 0 [0, 4), rank 1 [4, 8)\n"
      "  frozen BFloat16: 8 elements, padding 0, shard 2 x 4\n"
      "unit 'h.0' _HYBRID_SHARD_ZERO2, gathered from forward to backward\n");
  ASSERT_EQ(units.size(), 2);
  EXPECT_EQ(units[0]["name"], "");
  EXPECT_EQ(units[0]["strategy"], "full_shard");
  EXPECT_EQ(units[0]["parameters"], 23);
  EXPECT_EQ(units[0]["shard_bytes"], 4 * 4 + 2 * 2);
  EXPECT_EQ(units[0]["gathered_bytes"], 16 * 2 + 8 * 2);
  EXPECT_EQ(units[1]["name"], "h.0");
  EXPECT_EQ(units[1]["strategy"], "hybrid_shard_zero2");
}

}  // namespace
}  // namespace fsdp::planner::units_document_test
