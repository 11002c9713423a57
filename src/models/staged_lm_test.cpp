// Tests the division of language models into stages, without a pipeline.
#include "models/staged_lm.h"

#include <set>

#include "fsdp/deferred_init.h"
#include "models/testing/model_tests.h"

namespace fsdp::models::staged_lm_test {
namespace {

using namespace model_tests;

constexpr int64_t kBlocks = 4;

// Begin and end of each stage.
std::vector<std::pair<int64_t, int64_t>> ranges(const std::vector<StagePart>& parts) {
  std::vector<std::pair<int64_t, int64_t>> result;
  for (const StagePart& part : parts) result.emplace_back(part.begin, part.end);
  return result;
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// The last three are those of torchtitan's generate_llm_fqn_per_model_part.
TEST(StageParts, EmbeddingAndHeadCountAsBlocks) {
  EXPECT_EQ(ranges(stage_parts(5, 1)), (Ranges{{0, 5}}));
  EXPECT_EQ(ranges(stage_parts(7, 2, 0, 0)), (Ranges{{0, 4}, {4, 7}}));
  EXPECT_EQ(ranges(stage_parts(1, 3)), (Ranges{{0, 0}, {0, 1}, {1, 1}}));
  EXPECT_EQ(ranges(stage_parts(6, 2)), (Ranges{{0, 3}, {3, 6}}));
  EXPECT_EQ(ranges(stage_parts(8, 3)), (Ranges{{0, 3}, {3, 6}, {6, 8}}));
  EXPECT_EQ(ranges(stage_parts(32, 8)),
            (Ranges{{0, 4}, {4, 9}, {9, 13}, {13, 17}, {17, 21}, {21, 25}, {25, 29}, {29, 32}}));
  const auto parts = stage_parts(8, 3);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].is_first, i == 0);
    EXPECT_EQ(parts[i].is_last, i == 2);
  }
}

TEST(StageParts, TooFewBlocksAreRefused) {
  EXPECT_THAT(error_of([] { stage_parts(2, 5); }),
              HasSubstr("stage_parts: 2 blocks, of which the first stage has 1 less and the last one 1 less, do not "
                        "suffice for 5 stages"));
  EXPECT_THAT(error_of([] { stage_parts(4, 2, 6, 0); }), HasSubstr("do not suffice for 2 stages"));
  EXPECT_THAT(error_of([] { stage_parts(4, 0); }), HasSubstr("0 stages; there must be at least one"));
  EXPECT_THAT(error_of([] { stage_parts(4, 2, -1); }), HasSubstr("neither may be negative"));
}

class Staged : public ::testing::TestWithParam<SmallModel> {
 protected:
  std::shared_ptr<CausalLM> make(bool tied) const {
    torch::manual_seed(5);
    auto model = make_causal_lm(config_of_stages(GetParam(), kBlocks, tied), torch::kFloat32, torch::kCPU);
    model->initialize();
    return model;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Staged, ::testing::ValuesIn(small_models()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Staged, PartsHaveNamesAndValuesOfTheWholeModel) {
  for (const bool tied : {false, true}) {
    const auto whole = make(tied)->named_parameters();
    for (const int64_t stages : {1, 2, 4, 6}) {
      std::multiset<std::string> names;
      for (const StagePart& part : stage_parts(kBlocks, stages)) {
        const auto model = deferred_init([&] { return make(tied); });
        StagedLM& staged = staged_lm(*model);
        staged.keep(part);
        EXPECT_EQ(staged.tied_parameter(), tied ? GetParam().embedding : "");
        materialize(*model);
        for (const auto& parameter : model->named_parameters()) {
          names.insert(parameter.key());
          EXPECT_TRUE(torch::equal(parameter.value(), whole[parameter.key()])) << parameter.key();
        }
      }
      std::multiset<std::string> expected;
      for (const auto& parameter : whole) expected.insert(parameter.key());
      if (tied && stages > 1) {
        expected.erase("lm_head.weight");
        expected.insert(GetParam().embedding);
      }
      EXPECT_EQ(names, expected) << stages << " stages, tied " << tied;
    }
  }
}

TEST_P(Staged, PartsTogetherComputeTheWholeModelToTheBit) {
  const torch::Tensor ids = (torch::arange(18) * 7 % 31).view({2, 9});
  const std::vector<int64_t> ends = {14, 8};  // in the middle of both sequences
  const auto whole = make(/*tied=*/false);
  const torch::Tensor undivided = whole->forward(ids, ids).loss;
  whole->attend_by_document(ends);
  const LanguageModelOutput expected = whole->forward(ids, ids);
  EXPECT_FALSE(torch::equal(expected.loss, undivided));
  expected.loss.backward();
  for (const int64_t stages : {1, 3, 6}) {
    std::vector<at::Tensor> activations;
    std::vector<std::shared_ptr<CausalLM>> models;
    for (const StagePart& part : stage_parts(kBlocks, stages)) {
      models.push_back(make(/*tied=*/false));
      models.back()->attend_by_document(ends);
      StagedLM& staged = staged_lm(*models.back());
      staged.keep(part);
      activations = stage_forward(staged, part, [&](int) { return StageBatch{ids, ids, 0.5}; })(activations, 0);
    }
    EXPECT_TRUE(torch::equal(activations.at(0), expected.loss * 0.5));
    (activations.at(0) * 2).backward();
    const auto gradients = whole->named_parameters();
    for (const auto& model : models) {
      for (const auto& parameter : model->named_parameters()) {
        EXPECT_TRUE(torch::equal(parameter.value().grad(), gradients[parameter.key()].grad())) << parameter.key();
      }
    }
  }
}

TEST_P(Staged, DroppedPartsCannotBeRun) {
  const torch::Tensor ids = torch::arange(9).view({1, 9});
  const auto model = make(/*tied=*/false);
  StagedLM& staged = staged_lm(*model);
  const auto activations = staged.embed(ids, {});
  EXPECT_THAT(error_of([&] { staged.keep({1, kBlocks + 1}); }),
              HasSubstr("blocks [1, 5) are no part of a model with 4"));
  staged.keep({1, 3});
  EXPECT_THAT(error_of([&] { staged.embed(ids, {}); }), HasSubstr("this stage has no '"));
  EXPECT_THAT(error_of([&] { staged.finish(activations, ids); }), HasSubstr("this stage has no '"));
  EXPECT_EQ(error_of([&] { staged.run_blocks(activations, 1, 3, {}); }), kNoError);
  EXPECT_THAT(error_of([&] { staged.run_blocks(activations, 0, 3, {}); }),
              HasSubstr("block 0 of the model is not one of this stage's"));
  EXPECT_THAT(error_of([&] { model->forward(ids); }), HasSubstr("this stage has no '"));
}

}  // namespace
}  // namespace fsdp::models::staged_lm_test
