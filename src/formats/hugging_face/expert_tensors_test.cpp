#include "formats/hugging_face/expert_tensors.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "formats/hugging_face/hf_folder.h"
#include "formats/hugging_face/hf_folder_writer.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::expert_tensors_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const json kQwen{{"model_type", "qwen3_moe"}}, kMixtral{{"model_type", "mixtral"}};
const TensorInfo kGateUp{"model.layers.0.mlp.experts.gate_up_proj", at::kFloat, {2, 6, 4}};
const TensorInfo kDown{"model.layers.0.mlp.experts.down_proj", at::kFloat, {2, 4, 3}};
const TensorInfo kRouter{"model.layers.0.mlp.gate.weight", at::kFloat, {2, 4}};
const TensorInfo kNorm{"model.norm.weight", at::kFloat, {4}};

std::vector<std::string> described(const std::vector<FolderPart>& parts) {
  std::vector<std::string> texts;
  for (const FolderPart& part : parts) texts.push_back(c10::str(part.info.name, " ", part.begin, " ", part.info.shape));
  return texts;
}

std::vector<TensorInfo> stored_tensors(const json& config) {
  std::vector<TensorInfo> stored;
  for (const TensorInfo& info : {kGateUp, kDown, kRouter, kNorm}) {
    const auto parts = folder_parts(config, info);
    if (parts.empty()) stored.push_back(info);
    for (const FolderPart& part : parts) stored.push_back(part.info);
  }
  return stored;
}

TEST(ExpertTensors, AreRangesOfTheFusedTensor) {
  const std::string qwen = "model.layers.0.mlp.experts.", mixtral = "model.layers.0.block_sparse_moe.";
  EXPECT_THAT(described(folder_parts(kQwen, kGateUp)),
              ElementsAre(qwen + "0.gate_proj.weight 0 3 4", qwen + "0.up_proj.weight 12 3 4",
                          qwen + "1.gate_proj.weight 24 3 4", qwen + "1.up_proj.weight 36 3 4"));
  EXPECT_THAT(described(folder_parts(kQwen, kDown)),
              ElementsAre(qwen + "0.down_proj.weight 0 4 3", qwen + "1.down_proj.weight 12 4 3"));
  EXPECT_THAT(described(folder_parts(kMixtral, kDown)),
              ElementsAre(mixtral + "experts.0.w2.weight 0 4 3", mixtral + "experts.1.w2.weight 12 4 3"));
  EXPECT_THAT(described(folder_parts(kMixtral, kRouter)), ElementsAre(mixtral + "gate.weight 0 2 4"));
  EXPECT_THAT(folder_parts(kQwen, kRouter), IsEmpty());
  EXPECT_THAT(folder_parts(kQwen, kNorm), IsEmpty());
  EXPECT_THAT(folder_parts({{"model_type", "llama"}}, kGateUp), IsEmpty());
  EXPECT_THAT(folder_parts(json::object(), kGateUp), IsEmpty());
}

TEST(ExpertTensors, BecomeTheTensorsOfTheModel) {
  for (const json& config : {kQwen, kMixtral}) {
    const auto tensors = model_tensors(config, stored_tensors(config), "folder");
    ASSERT_EQ(tensors.size(), 4u);
    const std::vector<TensorInfo> wanted{kGateUp, kDown, kRouter, kNorm};
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(tensors[i].info.name, wanted[i].name);
      EXPECT_EQ(tensors[i].info.shape, wanted[i].shape);
    }
    EXPECT_EQ(described(tensors[0].parts), described(folder_parts(config, kGateUp)));
  }
}

TEST(ExpertTensors, FusedOnesStayAsTheyAre) {
  const auto tensors = model_tensors(kMixtral, {kGateUp, kDown, kRouter, kNorm}, "folder");
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_THAT(described(tensors[0].parts), ElementsAre(kGateUp.name + " 0 2 6 4"));
}

TEST(ExpertTensors, MissingAndDifferentOnesAreNamed) {
  const auto error = [](const auto& change) {
    std::vector<TensorInfo> stored = stored_tensors(kQwen);
    change(stored);
    return error_of([&] { model_tensors(kQwen, stored, "some/folder"); });
  };
  EXPECT_THAT(error([](auto& stored) { stored.erase(stored.begin() + 1); }),
              AllOf(HasSubstr("some/folder"), HasSubstr("experts.0.up_proj.weight"), HasSubstr("is missing")));
  EXPECT_THAT(error([](auto& stored) { stored.erase(stored.begin()); }), HasSubstr("experts.0.gate_proj.weight"));
  EXPECT_THAT(error([](auto& stored) { stored[3].shape = {3, 5}; }), HasSubstr("experts.1.up_proj.weight"));
  EXPECT_THAT(error([](auto& stored) { stored[3].dtype = at::kHalf; }), HasSubstr("differ in shape or dtype"));
  EXPECT_THAT(error([](auto& stored) { stored[0].shape = {12}; }), HasSubstr("is a matrix"));
  EXPECT_THAT(error([](auto& stored) { stored[3].name = "model.layers.0.mlp.experts.2147483647.up_proj.weight"; }),
              HasSubstr("is missing"));
}

TEST(ExpertTensors, PartsOfARangeAreVisitedInTheirOrder) {
  const auto parts = folder_parts(kQwen, kGateUp);
  for (int64_t begin = 0; begin <= 48; ++begin) {
    for (int64_t end = begin; end <= 48; ++end) {
      int64_t next = begin;
      for_each_part(parts, begin, end, [&](const FolderPart& part, int64_t from, int64_t to) {
        EXPECT_EQ(part.begin + from, next);
        EXPECT_LT(from, to);
        EXPECT_LE(to, part.info.numel());
        next = part.begin + to;
      });
      EXPECT_EQ(next, end);
    }
  }
}

class WrittenExperts : public ::testing::TestWithParam<ExpertTensors> {};

TEST_P(WrittenExperts, AreReadAgainWholeAndInPieces) {
  const testing::TemporaryFolder folder;
  const at::Tensor gate_up = torch::randn(kGateUp.shape), down = torch::randn(kDown.shape),
                   router = torch::randn({2, 4});
  for (const int64_t piece : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{13}, int64_t{48}}) {
    HfFolderWriter writer(folder / "model", kMixtral, {kGateUp, kDown, kRouter},
                          {.max_shard_size = 100, .experts = GetParam()});
    for (const auto& [info, values] : {std::pair{kGateUp, gate_up}, {kDown, down}, {kRouter, router}}) {
      if (piece == 0) writer.write(info.name, values);
      for (int64_t begin = 0; piece > 0 && begin < values.numel(); begin += piece) {
        writer.append(info.name, values.reshape(-1).slice(0, begin, begin + piece));
      }
    }
    writer.finish();
    const HfFolder read(folder / "model");
    EXPECT_EQ(read.find(kGateUp.name) != nullptr, GetParam() == ExpertTensors::kFused);
    const auto tensors = model_tensors(read.config(), read.tensors(), "folder");
    ASSERT_EQ(tensors.size(), 3u);
    for (const ModelTensor& tensor : tensors) {
      at::Tensor values = torch::empty({tensor.info.numel()});
      for (const FolderPart& part : tensor.parts) {
        read.read_range(part.info.name, 0, part.info.numel(), values.narrow(0, part.begin, part.info.numel()));
      }
      const at::Tensor& want = tensor.info.name == kGateUp.name ? gate_up
                               : tensor.info.name == kDown.name ? down
                                                                : router;
      EXPECT_TRUE(torch::equal(values, want.reshape(-1))) << tensor.info.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, WrittenExperts, ::testing::Values(ExpertTensors::kSeparate, ExpertTensors::kFused));

}  // namespace
}  // namespace fsdp::formats::expert_tensors_test
