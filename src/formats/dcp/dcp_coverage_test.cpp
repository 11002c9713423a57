#include "formats/dcp/dcp_coverage.h"
#include "support/faults/error_of.h"

#include <algorithm>
#include <set>

#include "formats/testing/dcp_metadata_bytes.h"

namespace fsdp::formats::dcp_coverage_test {
namespace {

using ::testing::HasSubstr;
using testing::kNoError;

TEST(DcpCoverage, ChunksThatCoverTheTensor) {
  EXPECT_EQ(boxes_error({4, 6}, {{{0, 0}, {4, 6}}}), kNoError);
  EXPECT_EQ(boxes_error({4, 6}, {{{2, 0}, {2, 6}}, {{0, 0}, {2, 6}}}), kNoError);
  // A pinwheel, which no straight cut divides into two parts.
  EXPECT_EQ(
      boxes_error({3, 3}, {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}}),
      kNoError);
  EXPECT_EQ(boxes_error({}, {{{}, {}}}), kNoError);
  EXPECT_EQ(boxes_error({0, 6}, {}), kNoError);
  EXPECT_EQ(boxes_error({4}, {{{0}, {4}}, {{4}, {0}}}), kNoError);
}

TEST(DcpCoverage, HolesAndOverlaps) {
  EXPECT_THAT(boxes_error({4, 6}, {}), HasSubstr("shape [4, 6]: no chunk holds element [0, 0]"));
  EXPECT_THAT(boxes_error({}, {}), HasSubstr("no chunk holds element []"));
  EXPECT_THAT(boxes_error({4, 6}, {{{0, 0}, {2, 6}}, {{3, 0}, {1, 6}}}), HasSubstr("no chunk holds element [2, 0]"));
  EXPECT_THAT(boxes_error({4, 6}, {{{0, 0}, {4, 5}}}), HasSubstr("no chunk holds element [0, 5]"));
  EXPECT_THAT(boxes_error({4, 6}, {{{0, 0}, {3, 6}}, {{2, 0}, {2, 6}}}),
              HasSubstr("chunk [2, 0] overlaps chunk [0, 0]: both hold element [2, 0]"));
  // As many elements as the tensor has, but not each exactly once.
  EXPECT_THAT(boxes_error({4}, {{{0}, {2}}, {{1}, {2}}}), HasSubstr("both hold element [1]"));
  EXPECT_THAT(boxes_error({2, 2}, {{{0, 0}, {1, 1}}, {{1, 1}, {1, 1}}}), HasSubstr("no chunk holds element [0, 1]"));
  EXPECT_THAT(boxes_error({3, 3}, {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}}),
              HasSubstr("no chunk holds element [1, 1]"));
  EXPECT_THAT(boxes_error(Sizes(6, 2), {{Sizes(6, 0), Sizes(6, 1)}}), HasSubstr("no chunk holds element"));
  EXPECT_THAT(boxes_error(Sizes(7, 2), {{Sizes(7, 0), Sizes(7, 1)}}),
              HasSubstr("1 chunks that split 7 dimensions are more than supported"));
}

// Compares all sets of at most four boxes of a 2 x 3 tensor, with different offsets, with a direct count.
TEST(DcpCoverage, CoverageIsExact) {
  std::vector<Box> all;
  for (int64_t cell = 0; cell < 6; ++cell) {
    for (int64_t height = 1; height <= 2 - cell / 3; ++height) {
      for (int64_t width = 1; width <= 3 - cell % 3; ++width) all.push_back({{cell / 3, cell % 3}, {height, width}});
    }
  }
  int covered = 0;
  for (uint32_t set = 0; set < uint32_t{1} << all.size(); ++set) {
    if (__builtin_popcount(set) > 4) continue;
    int counts[2][3] = {};
    OneTensor tensor{.shape = {2, 3}, .boxes = {}};
    std::set<Sizes> offsets;
    for (size_t i = 0; i < all.size(); ++i) {
      if ((set >> i & 1) != 0) {
        tensor.boxes.push_back(all[i]);
        offsets.insert(all[i].offsets);
        for (int64_t cell = 0; cell < all[i].sizes[0] * all[i].sizes[1]; ++cell) {
          ++counts[all[i].offsets[0] + cell / all[i].sizes[1]][all[i].offsets[1] + cell % all[i].sizes[1]];
        }
      }
    }
    const bool exact = std::all_of(&counts[0][0], &counts[0][0] + 6, [](int count) { return count == 1; });
    if (offsets.size() == tensor.boxes.size()) {
      EXPECT_EQ(tensor_error(tensor) == kNoError, exact) << set;
      covered += exact ? 1 : 0;
    }
  }
  EXPECT_GT(covered, 10);
}

TEST(DcpCoverage, ManyChunksAreQuicklyChecked) {
  std::vector<Box> boxes;
  for (int64_t i = 0; i < 10'000; ++i) boxes.push_back({{i, 0}, {1, 6}});
  EXPECT_EQ(boxes_error({10'000, 6}, boxes), kNoError);
  boxes.back().sizes[1] = 5;
  EXPECT_THAT(boxes_error({10'000, 6}, boxes), HasSubstr("no chunk holds element [9999, 5]"));
}

}  // namespace
}  // namespace fsdp::formats::dcp_coverage_test
