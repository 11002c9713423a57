#include "models/relative_positions.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace fsdp::models::relative_positions_test {
namespace {

// Returns the buckets of the keys at these distances after (or, if negative, before) a query in the middle.
std::vector<int64_t> buckets_at(const RelativeBuckets& buckets, const std::vector<int64_t>& distances) {
  constexpr int64_t kMiddle = 300;
  const auto row = relative_position_buckets(buckets, 2 * kMiddle + 1, torch::kCPU)[kMiddle];
  std::vector<int64_t> found;
  for (int64_t distance : distances) found.push_back(row[kMiddle + distance].item<int64_t>());
  return found;
}

// T5's settings: in each direction 8 buckets for distances up to 7, then 8 with ratio 16^(1/8) = 1.414 up to 128.
TEST(RelativePositions, OfAnEncoder) {
  const RelativeBuckets buckets{.count = 32, .max_distance = 128, .bidirectional = true};
  EXPECT_EQ(buckets_at(buckets, {0, -1, -7, -8, -11, -12, -15, -16, -22, -23, -90, -91, -127, -128, -300}),
            (std::vector<int64_t>{0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 14, 15, 15, 15, 15}));
  EXPECT_EQ(buckets_at(buckets, {1, 7, 8, 11, 12, 91, 300}), (std::vector<int64_t>{17, 23, 24, 24, 25, 31, 31}));
}

// 16 buckets for distances up to 15, then 16 with ratio 8^(1/16) = 1.139.
TEST(RelativePositions, OfADecoder) {
  const RelativeBuckets buckets{.count = 32, .max_distance = 128, .bidirectional = false};
  EXPECT_EQ(buckets_at(buckets, {0, -1, -15, -16, -18, -19, -112, -113, -128, -300}),
            (std::vector<int64_t>{0, 1, 15, 16, 16, 17, 30, 31, 31, 31}));
  EXPECT_EQ(buckets_at(buckets, {1, 16, 300}), (std::vector<int64_t>{0, 0, 0}));
}

TEST(RelativePositions, OfFewBuckets) {
  const RelativeBuckets buckets{.count = 7, .max_distance = 4, .bidirectional = true};
  EXPECT_EQ(buckets_at(buckets, {-9, -1, 0, 1, 9}), (std::vector<int64_t>{2, 1, 0, 4, 5}));
  EXPECT_EQ(relative_position_buckets(buckets, 1, torch::kCPU).item<int64_t>(), 0);
}

}  // namespace
}  // namespace fsdp::models::relative_positions_test
