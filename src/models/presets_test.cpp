#include "models/presets.h"

#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "checkpoint/checkpoint_test_support.h"
#include "models/pretrained.h"

namespace fsdp::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool is_causal(const Preset& preset) { return preset.config.at("model_type") != "t5"; }

std::shared_ptr<CausalLM> causal_on_meta(const std::string& name) {
  return make_causal_lm(find_preset(name).config, torch::kBFloat16, torch::kMeta);
}

std::shared_ptr<LanguageModel> on_meta(const std::string& name) {
  if (is_causal(find_preset(name))) return causal_on_meta(name);
  return make_seq2seq_lm(find_preset(name).config, torch::kBFloat16, torch::kMeta);
}

struct Size {
  const char* name;
  int64_t parameters;  // exactly
  double published;
};

class Presets : public ::testing::TestWithParam<Size> {};

TEST_P(Presets, HaveThePublishedNumberOfParameters) {
  int64_t count = 0;
  for (const auto& tensor : checkpoint_tensors(*on_meta(GetParam().name))) count += tensor.numel();
  EXPECT_EQ(count, GetParam().parameters);
  EXPECT_NEAR(static_cast<double>(count), GetParam().published, 0.01 * GetParam().published);
}

// The folders of openai-community and of google-t5/t5-11b hold that many. 175 billion: 12 L W^2 and the rest counted by
// hand; T5: L (12 W A + 4 W F + 5 W) + (V + 2) W and 2 x 32 H for positions, with A = heads * width of a head.
INSTANTIATE_TEST_SUITE_P(Sizes, Presets,
                         ::testing::Values(Size{"gpt2", 124'439'808, 124e6}, Size{"gpt2-medium", 354'823'168, 355e6},
                                           Size{"gpt2-large", 774'030'080, 774e6},
                                           Size{"gpt2-xl", 1'557'611'200, 1.55e9},
                                           Size{"mingpt-175b", 174'601'101'312, 174.6e9},
                                           Size{"t5-611m", 611'838'976, 611e6}, Size{"t5-2b", 2'280'642'560, 2.28e9},
                                           Size{"t5-11b", 11'307'321'344, 11.3e9}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Against Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 5.1, without
// recomputation: 72 B S L W^2 (1 + S / 6W + V / 12LW) floating point operations in a step.
TEST(Preset, FlopsOfAStep) {
  for (const Preset& preset : presets()) {
    if (!is_causal(preset)) continue;
    const auto size = [&](const char* key) { return preset.config.at(key).get<double>(); };
    const double layers = size("n_layer"), width = size("n_embd"), length = size("n_positions");
    const double published =
        72 * length * layers * width * width * (1 + length / (6 * width) + size("vocab_size") / (12 * layers * width));
    const auto model = causal_on_meta(preset.name);
    EXPECT_EQ(model->max_sequence_length(), size("n_positions"));
    EXPECT_NEAR(model->flops_per_token(model->max_sequence_length()) * length, published, 1e-9 * published);
  }
  EXPECT_NEAR(causal_on_meta("mingpt-175b")->flops_per_token(2048) * 2048, 2.2044e15, 0.0001e15);
}

// By hand for S = 512 tokens of source and of target: 6 S (L (12 W A + 4 W F) + V W) + 36 L A S^2 for each sample.
TEST(Preset, FlopsOfAStepOfT5) {
  for (const auto& [name, by_hand] : {std::pair{"t5-611m", 2.1111e12}, {"t5-2b", 7.4692e12}, {"t5-11b", 38.447e12}}) {
    const auto model = make_seq2seq_lm(find_preset(name).config, torch::kBFloat16, torch::kMeta);
    const double of_step = 8 * model->flops_per_sample(512, 512);
    EXPECT_NEAR(of_step, 8 * by_hand, 0.0001 * of_step) << name;
  }
}

TEST(Preset, RunsOfThePaper) {
  const Preset& preset = find_preset("mingpt-175b");
  EXPECT_EQ(preset.runs->sequence_length, 2048);
  EXPECT_THAT(preset.runs->batch_sizes, ElementsAre(1, 2));
  EXPECT_THAT(preset.runs->gpus, ElementsAre(128, 192, 256, 384, 512));
  EXPECT_THAT(preset.source, HasSubstr("PyTorch FSDP"));
  for (const char* without : {"gpt2", "t5-611m", "t5-2b"}) EXPECT_FALSE(find_preset(without).runs) << without;
  const Preset& t5 = find_preset("t5-11b");
  EXPECT_EQ(t5.runs->sequence_length, 512);
  EXPECT_THAT(t5.runs->batch_sizes, ElementsAre(8, 16));
  EXPECT_THAT(t5.runs->gpus, ElementsAre(8, 16, 32, 64, 128, 256, 512));
}

TEST(Preset, NamesAreUniqueAndUnknownOnesAreRefused) {
  std::set<std::string> names;
  for (const Preset& preset : presets()) EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
  EXPECT_THAT(checkpoint::error_of([] { find_preset("gpt3"); }),
              AllOf(HasSubstr("\"gpt3\""), HasSubstr("gpt2-xl, mingpt-175b")));
}

}  // namespace
}  // namespace fsdp::models
