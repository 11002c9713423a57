#include "models/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/faults/error_of.h"

namespace fsdp::models::documents_test {
namespace {

using fsdp::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

torch::Tensor tokens(const std::vector<int64_t>& values, int64_t sequences) {
  return torch::tensor(values, torch::kLong).view({sequences, -1});
}

TEST(Documents, EndWithAnEndOrWithTheirSequence) {
  const auto documents = Documents::ending_with({9, 8}, tokens({1, 9, 2, 3, 8, 9, 4,  //
                                                                1, 2, 3, 4, 5, 6, 7,  //
                                                                9, 1, 2, 3, 4, 5, 9},
                                                               3));
  ASSERT_FALSE(documents.are_sequences());
  EXPECT_THAT(documents.lengths(), ElementsAre(ElementsAre(2, 3, 1, 1), ElementsAre(7), ElementsAre(1, 6)));
  EXPECT_EQ(documents.longest(7), 7);
  EXPECT_TRUE(torch::equal(documents.positions(torch::kCPU), tokens({0, 1, 0, 1, 2, 0, 0,  //
                                                                     0, 1, 2, 3, 4, 5, 6,  //
                                                                     0, 0, 1, 2, 3, 4, 5},
                                                                    3)));
}

TEST(Documents, AreSequencesIfNoneEndsBefore) {
  EXPECT_TRUE(Documents().are_sequences());
  EXPECT_EQ(Documents().longest(5), 5);
  EXPECT_TRUE(Documents::ending_with({9}, tokens({1, 2, 9, 3, 4, 5}, 2)).are_sequences());
}

TEST(Documents, NeedTheValuesOfTokens) {
  EXPECT_THAT(error_of([] { Documents::ending_with({9}, torch::empty({1, 3}, torch::device(torch::kMeta))); }),
              HasSubstr("needs the values of input_ids"));
  EXPECT_THAT(error_of([] { Documents::ending_with({9}, torch::ones({1, 3})); }), HasSubstr("[batch, sequence] int64"));
}

}  // namespace
}  // namespace fsdp::models::documents_test
