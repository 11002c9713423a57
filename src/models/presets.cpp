#include "models/presets.h"

#include <c10/util/Exception.h>

#include <utility>

#include "models/dhen_config.h"
#include "models/presets/decoders.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

constexpr const char* kGpt2Paper = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019";
constexpr const char* kFsdpPaper =
    "Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, 2023, section 5.4; sizes of "
    "Brown et al., Language Models are Few-Shot Learners, 2020";
constexpr const char* kT5Paper =
    "Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, 2020, as "
    "google-t5/t5-11b; runs of Zhao et al., PyTorch FSDP, 2023, section 5.4";
// The paper gives only sizes. These widths, with the ungated feed-forward of the 11B, have these sizes.
constexpr const char* kT5Sizes =
    "Zhao et al., PyTorch FSDP, 2023, section 5.2, for the size; layers and widths, which it does not give, of "
    "google/t5-v1_1-large and -xl";

constexpr const char* kRegNetPaper = "Radosavovic et al., Designing Network Design Spaces, 2020";
constexpr const char* kDeepViTPaper = "Zhou et al., DeepViT: Towards Deeper Vision Transformer, 2021";
constexpr const char* kFsdpPaperTables =
    "Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, 2023, section 5.1, for the numbers "
    "of dense and sparse parameters; tables, widths and layers, which it does not give, are this project's";
// The paper says 9B and 8B, and gives no widths and depths. These are the models of about these sizes in the benchmarks
// of PyTorch's FSDP at that time (github.com/lessw2020/transformer_framework). The first, with 9.35 billion parameters,
// is SEER's RegNet, which transformers calls 10b.
constexpr const char* kFsdpPaperImages =
    "Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, 2023, section 5.3; sizes of "
    "lessw2020/transformer_framework; nodes taken to be of 8 GPUs";

json gpt2(int64_t vocab_size, int64_t positions, int64_t width, int64_t layers, int64_t heads) {
  return {{"model_type", "gpt2"},    {"architectures", {"GPT2LMHeadModel"}},
          {"n_embd", width},         {"n_layer", layers},
          {"n_head", heads},         {"n_positions", positions},
          {"vocab_size", vocab_size}};
}

json mpt(int64_t width, int64_t layers, int64_t heads, int64_t length) {
  return {{"model_type", "mpt"}, {"architectures", {"MptForCausalLM"}},
          {"d_model", width},    {"n_layers", layers},
          {"n_heads", heads},    {"max_seq_len", length},
          {"vocab_size", 50432}};
}

json t5(int64_t width, int64_t head_width, int64_t inner_width, int64_t layers, int64_t heads) {
  return {{"model_type", "t5"},  {"architectures", {"T5ForConditionalGeneration"}},
          {"d_model", width},    {"d_kv", head_width},
          {"d_ff", inner_width}, {"num_layers", layers},
          {"num_heads", heads},  {"feed_forward_proj", "relu"},
          {"vocab_size", 32128}, {"decoder_start_token_id", 0},
          {"dropout_rate", 0.1}};
}

json image_classifier(const char* type, const char* class_name, const json& sizes) {
  json config{{"model_type", type}, {"architectures", {class_name}}, {"num_labels", 1000}};
  config.update(sizes);
  return config;
}

json regnet(const char* layer_type, const std::vector<int64_t>& widths, const std::vector<int64_t>& depths,
            int64_t groups_width) {
  return image_classifier("regnet", "RegNetForImageClassification",
                          {{"layer_type", layer_type},
                           {"hidden_sizes", widths},
                           {"depths", depths},
                           {"groups_width", groups_width},
                           {"embedding_size", 32}});
}

struct DeepViTSizes {
  int64_t image, patch, width, layers, heads, intermediate;
};

json deepvit(const DeepViTSizes& sizes, double dropout) {
  return image_classifier("deepvit", "DeepViT",
                          {{"image_size", sizes.image},
                           {"patch_size", sizes.patch},
                           {"hidden_size", sizes.width},
                           {"num_hidden_layers", sizes.layers},
                           {"num_attention_heads", sizes.heads},
                           {"intermediate_size", sizes.intermediate},
                           {"qkv_bias", false},
                           {"dropout", dropout}});
}

std::vector<Preset> make_presets() {
  std::vector<Preset> presets{
      {"gpt2", kGpt2Paper, gpt2(50257, 1024, 768, 12, 12), {}},
      {"gpt2-medium", kGpt2Paper, gpt2(50257, 1024, 1024, 24, 16), {}},
      {"gpt2-large", kGpt2Paper, gpt2(50257, 1024, 1280, 36, 20), {}},
      {"gpt2-xl", kGpt2Paper, gpt2(50257, 1024, 1600, 48, 25), {}},
      {"mingpt-175b", kFsdpPaper, gpt2(50000, 2048, 12288, 96, 96),
       PublishedRuns{.sequence_length = 2048, .batch_sizes = {1, 2}, .gpus = {128, 192, 256, 384, 512}}},
      {"t5-611m", kT5Sizes, t5(1024, 64, 2816, 24, 16), {}},
      {"t5-2b", kT5Sizes, t5(2048, 64, 5120, 24, 32), {}},
      {"t5-11b", kT5Paper, t5(1024, 128, 65536, 24, 128),
       PublishedRuns{.sequence_length = 512, .batch_sizes = {8, 16}, .gpus = {8, 16, 32, 64, 128, 256, 512}}},
      {"regnet-x-400mf", kRegNetPaper, regnet("x", {32, 64, 160, 400}, {1, 2, 7, 12}, 16), {}},
      {"regnet-y-400mf", kRegNetPaper, regnet("y", {48, 104, 208, 440}, {1, 3, 6, 6}, 8), {}},
      {"regnet-9b", kFsdpPaperImages, regnet("y", {2020, 4040, 11110, 28280}, {2, 7, 17, 1}, 1010),
       PublishedRuns{.image_size = 224, .batch_sizes = {48, 72}, .gpus = {16, 32}}},
      {"deepvit-s", kDeepViTPaper, deepvit({224, 16, 396, 16, 12, 1188}, 0.0), {}},
      {"deepvit-8b", kFsdpPaperImages, deepvit({256, 32, 1024, 952, 16, 2048}, 0.1),
       PublishedRuns{.image_size = 256, .batch_sizes = {105, 120}, .gpus = {16, 32}}},
      {"dhen-550m", kFsdpPaperTables, dhen_550m(), PublishedRuns{.batch_sizes = {1024}, .gpus = {8, 512}}},
  };
  presets.push_back({"mpt-7b", "config.json of mosaicml/mpt-7b", mpt(4096, 32, 32, 2048), {}});
  presets.push_back({"mpt-30b", "config.json of mosaicml/mpt-30b", mpt(7168, 48, 64, 8192), {}});
  for (Preset& preset : decoder_presets()) presets.push_back(std::move(preset));
  return presets;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets = make_presets();
  return kPresets;
}

const Preset& find_preset(const std::string& name) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  TORCH_CHECK(false, "no preset is named \"", name, "\"; there are: ", c10::Join(", ", names));
}

}  // namespace fsdp::models
