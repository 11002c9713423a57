#include "models/presets.h"

#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "models/pretrained.h"
#include "models/registry.h"
#include "support/faults/error_of.h"

namespace fsdp::models::presets_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Model = PretrainedModel>
std::shared_ptr<Model> on_meta(const std::string& name) {
  return make_uninitialized<Model>(find_preset(name).config, torch::dtype(torch::kBFloat16).device(torch::kMeta));
}

int64_t elements(const std::vector<torch::Tensor>& tensors) {
  int64_t count = 0;
  for (const auto& tensor : tensors) count += tensor.numel();
  return count;
}

// Counts each parameter once, even if it has several names.
int64_t number_of_parameters(const PretrainedModel& model) {
  int64_t count = -elements(model.buffers());
  for (const auto& tensor : checkpoint_tensors(model)) count += tensor.numel();
  return count;
}

struct Size {
  const char* name;
  int64_t parameters;  // exactly
  double published;
  double tolerance = 0.01;  // relative
};

class Presets : public ::testing::TestWithParam<Size> {};

std::string name_of(const ::testing::TestParamInfo<Size>& info) {
  std::string name = info.param.name;
  std::replace_if(name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

TEST_P(Presets, HaveThePublishedNumberOfParameters) {
  const Size& want = GetParam();
  const int64_t count = number_of_parameters(*on_meta(want.name));
  EXPECT_EQ(count, want.parameters);
  EXPECT_NEAR(static_cast<double>(count), want.published, want.tolerance * want.published);
}

// The folders of openai-community and of google-t5/t5-11b have these numbers. 175 billion: 12 L W^2 and the rest
// counted by hand. T5: L (12 W A + 4 W F + 5 W) + (V + 2) W and 2 x 32 H for positions, with A = heads * width of a
// head. RegNets: the numbers of transformers' models; torchvision's 400mf models have the same numbers, and 9.35
// billion are those of SEER, "9B" in the FSDP paper. DeepViTs: see below; the paper says 27 million, and does not
// describe its class head and stem.
INSTANTIATE_TEST_SUITE_P(
    Sizes, Presets,
    ::testing::Values(Size{"gpt2", 124'439'808, 124e6}, Size{"gpt2-medium", 354'823'168, 355e6},
                      Size{"gpt2-large", 774'030'080, 774e6}, Size{"gpt2-xl", 1'557'611'200, 1.55e9},
                      Size{"mingpt-175b", 174'601'101'312, 174.6e9}, Size{"t5-611m", 611'838'976, 611e6},
                      Size{"t5-2b", 2'280'642'560, 2.28e9}, Size{"t5-11b", 11'307'321'344, 11.3e9},
                      Size{"regnet-x-400mf", 5'495'976, 5'495'976, 0}, Size{"regnet-y-400mf", 4'344'144, 4'344'144, 0},
                      Size{"regnet-9b", 9'352'215'872, 9.35e9}, Size{"deepvit-s", 25'930'996, 27e6, 0.05},
                      Size{"deepvit-8b", 7'998'269'160, 8e9}, Size{"dhen-550m", 549'460'097, 550e6}),
    name_of);

// Exact numbers: those of transformers' models (tests/python/test_preset_sizes.py compares each parameter). Published:
// as rounded on the model cards.
INSTANTIATE_TEST_SUITE_P(
    Decoders, Presets,
    ::testing::Values(Size{"llama-3.2-1b", 1'235'814'400, 1.23e9}, Size{"llama-3.1-8b", 8'030'261'248, 8.03e9},
                      Size{"llama-3.1-70b", 70'553'706'496, 70.6e9}, Size{"smollm2-135m", 134'515'008, 135e6},
                      Size{"smollm3-3b", 3'075'098'624, 3.08e9}, Size{"qwen2.5-0.5b", 494'032'768, 0.49e9},
                      Size{"qwen2.5-7b", 7'615'616'512, 7.61e9}, Size{"qwen3-0.6b", 596'049'920, 0.6e9},
                      Size{"qwen3-8b", 8'190'735'360, 8.2e9}, Size{"qwen3-32b", 32'762'123'264, 32.8e9},
                      Size{"mistral-7b-v0.1", 7'241'732'096, 7.24e9}, Size{"mistral-7b-v0.3", 7'248'023'552, 7.25e9},
                      Size{"ministral-8b", 8'019'808'256, 8.02e9}, Size{"granite-3.3-2b", 2'533'539'840, 2.53e9},
                      Size{"granite-3.3-8b", 8'170'864'640, 8.17e9}, Size{"gemma-2b", 2'506'172'416, 2.51e9},
                      Size{"gemma-2-2b", 2'614'341'888, 2.61e9}, Size{"gemma-2-9b", 9'241'705'984, 9.24e9},
                      Size{"gemma-3-1b", 999'885'952, 1.0e9}, Size{"phi-3-mini-4k", 3'821'079'552, 3.82e9},
                      Size{"phi-4", 14'659'507'200, 14.7e9}, Size{"phi-4-mini", 3'836'021'760, 3.84e9},
                      Size{"olmo-2-7b", 7'298'617'344, 7.3e9}, Size{"olmo-3-7b", 7'298'011'136, 7.3e9},
                      Size{"glm-4-9b", 9'400'279'040, 9.4e9}, Size{"mixtral-8x7b", 46'702'792'704, 46.7e9},
                      Size{"qwen1.5-moe-a2.7b", 14'315'784'192, 14.3e9}, Size{"qwen3-30b-a3b", 30'532'122'624, 30.5e9},
                      Size{"qwen3-235b-a22b", 235'093'634'560, 235e9}, Size{"olmoe-1b-7b", 6'919'161'856, 6.92e9},
                      Size{"mpt-7b", 6'649'286'656, 6.6e9}, Size{"mpt-30b", 29'957'200'896, 30e9}),
    name_of);

// Compared with Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 5.1,
// without recomputation: 72 B S L W^2 (1 + S / 6W + V / 12LW) floating point operations in a step.
TEST(Preset, FlopsOfAStep) {
  for (const Preset& preset : presets()) {
    if (preset.config.at("model_type") != "gpt2") continue;
    const auto size = [&](const char* key) { return preset.config.at(key).get<double>(); };
    const double layers = size("n_layer"), width = size("n_embd"), length = size("n_positions");
    const double published =
        72 * length * layers * width * width * (1 + length / (6 * width) + size("vocab_size") / (12 * layers * width));
    const auto model = on_meta<CausalLM>(preset.name);
    EXPECT_EQ(model->max_sequence_length(), size("n_positions"));
    EXPECT_NEAR(model->flops_per_token(model->max_sequence_length()) * length, published, 1e-9 * published);
  }
  EXPECT_NEAR(on_meta<CausalLM>("mingpt-175b")->flops_per_token(2048) * 2048, 2.2044e15, 0.0001e15);
}

// Counted by hand for S = 512 source and target tokens: 6 S (L (12 W A + 4 W F) + V W) + 36 L A S^2 for each sample.
TEST(Preset, FlopsOfAStepOfT5) {
  for (const auto& [name, by_hand] : {std::pair{"t5-611m", 2.1111e12}, {"t5-2b", 7.4692e12}, {"t5-11b", 38.447e12}}) {
    const auto model = on_meta<Seq2SeqLM>(name);
    const double of_step = 8 * model->flops_per_sample(512, 512);
    EXPECT_NEAR(of_step, 8 * by_hand, 0.0001 * of_step) << name;
  }
}

// Exact numbers. For RegNets: three times the FLOPs that PyTorch counts in the forward of transformers' models.
TEST(Preset, FlopsOfAnImage) {
  for (const auto& [name, size, want] :
       std::vector<std::tuple<const char*, int64_t, double>>{{"regnet-x-400mf", 224, 2'482'875'648},
                                                             {"regnet-y-400mf", 224, 2'411'057'088},
                                                             {"regnet-9b", 224, 11'179'876'729'056},
                                                             {"deepvit-s", 224, 33'504'293'952},
                                                             {"deepvit-8b", 256, 3'171'339'374'592}}) {
    const auto model = on_meta<ImageClassifier>(name);
    EXPECT_EQ(model->flops_per_image(size, size), want) << name;
    EXPECT_EQ(model->num_classes(), 1000);
    EXPECT_EQ(model->image_size().value_or(size), size);
  }
}

// The multiply-adds of a forward that torchvision publishes, in units of 10^9.
TEST(Preset, FlopsThatTorchvisionGives) {
  EXPECT_NEAR(on_meta<ImageClassifier>("regnet-x-400mf")->flops_per_image(224, 224), 6 * 0.414e9, 0.005e9);
  EXPECT_NEAR(on_meta<ImageClassifier>("regnet-y-400mf")->flops_per_image(224, 224), 6 * 0.402e9, 0.005e9);
}

// For L layers of width W with H heads and an MLP of width M, over T tokens of patches of P values.
TEST(Preset, DeepViTCountedByHand) {
  const auto check = [](const char* name, int64_t L, int64_t W, int64_t H, int64_t M, int64_t T, int64_t P) {
    const auto model = on_meta<ImageClassifier>(name);
    const int64_t weights = 4 * W * W + 2 * W * M;
    const int64_t layer = weights + W + M + W + 4 * W + H * H + 2 * H;
    EXPECT_EQ(elements(model->parameters()), L * layer + P * W + W + W + T * W + 2 * W + 1000 * W + 1000) << name;
    EXPECT_EQ(elements(model->buffers()), L * (2 * H + 1)) << name;
    const int64_t products = L * (weights * T + 2 * T * T * W + T * T * H * H) + (T - 1) * P * W + 1000 * W;
    const int64_t size = *model->image_size();
    EXPECT_EQ(model->flops_per_image(size, size), 6.0 * static_cast<double>(products)) << name;
  };
  check("deepvit-s", 16, 396, 12, 1188, 197, 768);
  check("deepvit-8b", 952, 1024, 16, 2048, 65, 3072);
}

TEST(Preset, ImageRunsOfThePaper) {
  const auto check = [](const char* name, int64_t image, int64_t batch, int64_t batch_on_more) {
    const Preset preset = find_preset(name);
    EXPECT_EQ(preset.runs->image_size, image);
    EXPECT_THAT(preset.runs->batch_sizes, ElementsAre(batch, batch_on_more));
    EXPECT_THAT(preset.runs->gpus, ElementsAre(16, 32));
    EXPECT_THAT(preset.source, HasSubstr("PyTorch FSDP"));
  };
  check("regnet-9b", 224, 48, 72);
  check("deepvit-8b", 256, 105, 120);
}

TEST(Preset, RunsOfThePaper) {
  const Preset preset = find_preset("mingpt-175b");
  EXPECT_EQ(preset.runs->sequence_length, 2048);
  EXPECT_THAT(preset.runs->batch_sizes, ElementsAre(1, 2));
  EXPECT_THAT(preset.runs->gpus, ElementsAre(128, 192, 256, 384, 512));
  EXPECT_THAT(preset.source, HasSubstr("PyTorch FSDP"));
  const Preset dhen = find_preset("dhen-550m");
  EXPECT_THAT(dhen.runs->batch_sizes, ElementsAre(1024));
  EXPECT_THAT(dhen.runs->gpus, ElementsAre(8, 512));
  for (const char* without : {"gpt2", "t5-611m", "t5-2b"}) EXPECT_FALSE(find_preset(without).runs) << without;
  const Preset t5 = find_preset("t5-11b");
  EXPECT_EQ(t5.runs->sequence_length, 512);
  EXPECT_THAT(t5.runs->batch_sizes, ElementsAre(8, 16));
  EXPECT_THAT(t5.runs->gpus, ElementsAre(8, 16, 32, 64, 128, 256, 512));
}

TEST(Preset, NamesAreUniqueAndUnknownOnesAreRefused) {
  std::set<std::string> names;
  for (const Preset& preset : presets()) EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
  EXPECT_THAT(testing::error_of([] { find_preset("gpt3"); }),
              AllOf(HasSubstr("\"gpt3\""), HasSubstr("gpt2-xl, mingpt-175b")));
}

}  // namespace
}  // namespace fsdp::models::presets_test
