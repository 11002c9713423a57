#include "models/regnet.h"

#include <torch/torch.h>

#include <cmath>

#include "models/testing/model_tests.h"

namespace fsdp::models::regnet_test {
namespace {

using namespace model_tests;

std::shared_ptr<ImageClassifier> make(const json& changes, c10::Device device = torch::kMeta) {
  return make_image_classifier(changed(small_regnet(), changes), torch::kFloat64, device);
}

std::string make_error(const json& changes) {
  return error_of([&] { make(changes); });
}

TEST(RegNet, FqnsAreThoseOfHuggingFace) {
  const auto model = make({{"hidden_sizes", {6}}, {"depths", {1}}});
  EXPECT_THAT(
      model->named_parameters().keys(),
      ElementsAre(
          "regnet.embedder.embedder.convolution.weight", "regnet.embedder.embedder.normalization.weight",
          "regnet.embedder.embedder.normalization.bias", "regnet.encoder.stages.0.layers.0.shortcut.convolution.weight",
          "regnet.encoder.stages.0.layers.0.shortcut.normalization.weight",
          "regnet.encoder.stages.0.layers.0.shortcut.normalization.bias",
          "regnet.encoder.stages.0.layers.0.layer.0.convolution.weight",
          "regnet.encoder.stages.0.layers.0.layer.0.normalization.weight",
          "regnet.encoder.stages.0.layers.0.layer.0.normalization.bias",
          "regnet.encoder.stages.0.layers.0.layer.1.convolution.weight",
          "regnet.encoder.stages.0.layers.0.layer.1.normalization.weight",
          "regnet.encoder.stages.0.layers.0.layer.1.normalization.bias",
          "regnet.encoder.stages.0.layers.0.layer.2.attention.0.weight",
          "regnet.encoder.stages.0.layers.0.layer.2.attention.0.bias",
          "regnet.encoder.stages.0.layers.0.layer.2.attention.2.weight",
          "regnet.encoder.stages.0.layers.0.layer.2.attention.2.bias",
          "regnet.encoder.stages.0.layers.0.layer.3.convolution.weight",
          "regnet.encoder.stages.0.layers.0.layer.3.normalization.weight",
          "regnet.encoder.stages.0.layers.0.layer.3.normalization.bias", "classifier.1.weight", "classifier.1.bias"));
  EXPECT_EQ(model->named_buffers().keys().front(), "regnet.embedder.embedder.normalization.running_mean");
  EXPECT_EQ(model->named_parameters()["regnet.encoder.stages.0.layers.0.layer.1.convolution.weight"].sizes(),
            (std::vector<int64_t>{6, 2, 3, 3}));
}

// Normal with variance 2 / fan_out and uniform within 1/sqrt(fan_in); the std of 90 x 90 values is known to 0.8 %.
TEST(RegNet, InitialisationIsThatOfTransformers) {
  torch::manual_seed(7);
  const auto model =
      make({{"hidden_sizes", {90}}, {"depths", {2}}, {"groups_width", 90}, {"num_labels", 400}}, torch::kCPU);
  const auto parameters = model->named_parameters();
  const auto std_of = [&](const std::string& name) { return parameters[name].std().item<double>(); };
  const std::string layer = "regnet.encoder.stages.0.layers.1.layer.";
  EXPECT_NEAR(std_of(layer + "0.convolution.weight"), std::sqrt(2.0 / 90), 0.03 * std::sqrt(2.0 / 90));
  EXPECT_NEAR(std_of(layer + "1.convolution.weight"), std::sqrt(2.0 / 810), 0.03 * std::sqrt(2.0 / 810));
  const double bound = 1 / std::sqrt(90.0);
  for (const std::string& name : {std::string("classifier.1.weight"), std::string("classifier.1.bias")}) {
    EXPECT_NEAR(std_of(name), bound / std::sqrt(3.0), 0.1 * bound) << name;
    EXPECT_LE(parameters[name].abs().max().item<double>(), bound) << name;
  }
  EXPECT_LE(parameters[layer + "2.attention.0.bias"].abs().max().item<double>(), bound);
  EXPECT_GT(parameters[layer + "2.attention.2.bias"].abs().max().item<double>(), bound);  // fan_in is 22
}

// Counted by hand for images of 9 x 7: stem 5 x 4, stages 3 x 2 and 2 x 1.
TEST(RegNet, FlopsOfAnImage) {
  const double stem = 20 * 5 * 27;
  const double first = 20 * 30 + 6 * 6 * 18 + 2 * 6 * 1 + 6 * 36 + 6 * 30;    // 5 to 6 channels, shortcut
  const double second = 6 * 36 + 6 * 6 * 18 + 2 * 6 * 2 + 6 * 36;             // 6 to 6
  const double third = 6 * 60 + 2 * 10 * 18 + 2 * 10 * 2 + 2 * 100 + 2 * 60;  // 6 to 10, shortcut
  EXPECT_EQ(make({})->flops_per_image(9, 7), 6 * (stem + first + second + third + 70));
  const double excitations = 2 * 6 * 1 + 2 * 6 * 2 + 2 * 10 * 2;
  EXPECT_EQ(make({{"layer_type", "x"}})->flops_per_image(9, 7), 6 * (stem + first + second + third + 70 - excitations));
}

TEST(RegNet, OneValueForAChannelIsTooLittleToTrainOn) {
  const auto model = make({}, torch::kCPU);
  const auto one = torch::ones({1, 3, 4, 4}, torch::kFloat64);
  EXPECT_THAT(error_of([&] { model->forward(one); }),
              AllOf(HasSubstr("more than one value"), HasSubstr("[1, 6, 1, 1]")));
  EXPECT_EQ(error_of([&] { model->forward(one.expand({2, -1, -1, -1})); }), kNoError);
  model->eval();
  EXPECT_EQ(model->forward(one).logits.size(1), 7);
}

TEST(RegNetConfig, DefaultsAreThoseOfTransformers) {
  const RegNetConfig config = parse_regnet_config({{"hidden_sizes", {64}}, {"depths", {1}}});
  EXPECT_EQ(config.num_channels, 3);
  EXPECT_EQ(config.embedding_size, 32);
  EXPECT_EQ(config.groups_width, 64);
  EXPECT_EQ(config.layer_type, "y");
  EXPECT_EQ(config.hidden_act, "relu");
  EXPECT_TRUE(config.downsample_in_first_stage);
  EXPECT_EQ(config.num_labels, 2);
}

TEST(RegNetConfig, MisfitsAreRefused) {
  for (const char* key : {"hidden_sizes", "depths"}) {
    EXPECT_THAT(make_error({{key, nullptr}}), HasSubstr(std::string(key) + " is missing")) << key;
    for (const json& value : {json(3), json::array(), json({1, 0}), json({1, 2.5}), json({4294967296})}) {
      EXPECT_THAT(make_error({{key, value}}), HasSubstr("must be a list of integers from 1 to 2^31-1"));
    }
  }
  EXPECT_THAT(make_error({{"depths", {1}}}), AllOf(HasSubstr("depths is [1]"), HasSubstr("as hidden_sizes, 2")));
  EXPECT_THAT(make_error({{"hidden_sizes", {6, 11}}}),
              AllOf(HasSubstr("groups_width is 2"), HasSubstr("11 does not split into 5 equal groups")));
  EXPECT_THAT(make_error({{"hidden_sizes", {2, 4}}}), HasSubstr("hidden_sizes is [2,4]; it must be at least 3"));
  EXPECT_EQ(make_error({{"hidden_sizes", {2, 4}}, {"layer_type", "x"}}), kNoError);
  EXPECT_THAT(make_error({{"embedding_size", 1}}), HasSubstr("embedding_size is 1; it must be at least 3"));
  EXPECT_THAT(make_error({{"layer_type", "z"}}), HasSubstr("layer_type is \"z\"; it must be one of: x, y"));
  EXPECT_THAT(make_error({{"hidden_act", "tanh"}}), HasSubstr("silu, swish, gelu"));
  EXPECT_THAT(make_error({{"downsample_in_first_stage", 1}}), HasSubstr("true or false"));
}

}  // namespace
}  // namespace fsdp::models::regnet_test
