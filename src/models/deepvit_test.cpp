#include "models/deepvit.h"

#include <torch/torch.h>

#include <cmath>

#include "models/testing/model_tests.h"

namespace fsdp::models::deepvit_test {
namespace {

using namespace model_tests;

std::shared_ptr<ImageClassifier> make(const json& changes, c10::Device device = torch::kMeta) {
  return make_image_classifier(changed(small_deepvit(), changes), torch::kFloat64, device);
}

std::string make_error(const json& changes) {
  return error_of([&] { make(changes); });
}

TEST(DeepViT, NamesAndShapes) {
  const auto model = make({{"num_hidden_layers", 1}});
  const auto parameters = model->named_parameters();
  EXPECT_THAT(
      parameters.keys(),
      ElementsAre("embeddings.class_token", "embeddings.positions", "embeddings.patches.weight",
                  "embeddings.patches.bias", "layers.0.norm1.weight", "layers.0.norm1.bias", "layers.0.attention.theta",
                  "layers.0.attention.qkv.weight", "layers.0.attention.qkv.bias", "layers.0.attention.norm.weight",
                  "layers.0.attention.norm.bias", "layers.0.attention.proj.weight", "layers.0.attention.proj.bias",
                  "layers.0.norm2.weight", "layers.0.norm2.bias", "layers.0.mlp.fc1.weight", "layers.0.mlp.fc1.bias",
                  "layers.0.mlp.fc2.weight", "layers.0.mlp.fc2.bias", "norm.weight", "norm.bias", "classifier.weight",
                  "classifier.bias"));
  EXPECT_THAT(model->named_buffers().keys(),
              ElementsAre("layers.0.attention.norm.running_mean", "layers.0.attention.norm.running_var",
                          "layers.0.attention.norm.num_batches_tracked"));
  EXPECT_EQ(parameters["embeddings.positions"].sizes(), (std::vector<int64_t>{1, 10, 12}));
  EXPECT_EQ(parameters["layers.0.attention.theta"].sizes(), (std::vector<int64_t>{3, 3}));
  EXPECT_FALSE(make({{"qkv_bias", false}})->named_parameters().contains("layers.0.attention.qkv.bias"));
}

TEST(DeepViT, Initialisation) {
  torch::manual_seed(7);
  const auto model = make({{"hidden_size", 120}, {"num_attention_heads", 60}, {"initializer_range", 0.3}}, torch::kCPU);
  for (const auto& parameter : model->named_parameters()) {
    const torch::Tensor value = parameter.value();
    const std::string& name = parameter.key();
    if (name.ends_with("theta")) {
      EXPECT_LE(value.abs().max().item<double>(), 1 / std::sqrt(60.0));
      EXPECT_NEAR(value.std().item<double>(), 1 / std::sqrt(180.0), 0.05 / std::sqrt(180.0));
    } else if (value.dim() > 1) {
      EXPECT_NEAR(value.std().item<double>(), 0.3, 3 * 0.3 / std::sqrt(2.0 * static_cast<double>(value.numel())))
          << name;
    } else {
      EXPECT_TRUE(value.eq(name.ends_with("bias") ? 0 : 1).all().item<bool>()) << name;
    }
  }
}

// New map g is the sum over h of Theta[h, g] times map h. The weights of the norm let only new map 1 count here.
TEST(DeepViT, ThetaMixesHeadsTransposed) {
  torch::manual_seed(7);
  const auto model = make({{"num_hidden_layers", 1}, {"initializer_range", 0.5}}, torch::kCPU);
  model->eval();
  const torch::NoGradGuard no_grad;
  auto parameters = model->named_parameters();
  const auto images = torch::rand({2, 3, 15, 15}, torch::kFloat64);
  parameters["layers.0.attention.norm.weight"].copy_(torch::tensor({0.0, 1.0, 0.0}));
  const auto logits_with = [&](int64_t old_map, int64_t new_map) {
    parameters["layers.0.attention.theta"].zero_()[old_map][new_map] = 1;
    return model->forward(images).logits;
  };
  const auto differ = [](const torch::Tensor& a, const torch::Tensor& b) { return !torch::allclose(a, b, 0, 1e-6); };
  const auto nothing = logits_with(1, 0), of_2 = logits_with(2, 1), of_0 = logits_with(0, 1);
  EXPECT_TRUE(differ(of_2, nothing) && differ(of_0, nothing) && differ(of_0, of_2));
  EXPECT_FALSE(differ(logits_with(1, 2), nothing));
  for (int64_t part : {0, 12}) {  // queries and keys: copies those of head 2 to head 0
    auto& weight = parameters["layers.0.attention.qkv.weight"];
    weight.narrow(0, part, 4).copy_(weight.narrow(0, part + 8, 4));
  }
  EXPECT_TRUE(torch::allclose(logits_with(0, 1), of_2, 0, 1e-12));
}

TEST(DeepViT, ImagesOfAnotherSizeAreRefused) {
  const auto model = make({}, torch::kCPU);
  EXPECT_THAT(error_of([&] { model->forward(torch::zeros({1, 3, 15, 20}, torch::kFloat64)); }),
              AllOf(HasSubstr("15 x 20"), HasSubstr("image_size is 15")));
  EXPECT_THAT(error_of([&] { model->flops_per_image(20, 15); }), HasSubstr("20 x 15"));
}

TEST(DeepViTConfig, Defaults) {
  const DeepViTConfig config = parse_deepvit_config({{"image_size", 15},
                                                     {"patch_size", 5},
                                                     {"hidden_size", 12},
                                                     {"num_hidden_layers", 2},
                                                     {"num_attention_heads", 3}});
  EXPECT_EQ(config.num_channels, 3);
  EXPECT_EQ(config.intermediate_size, 48);
  EXPECT_EQ(config.hidden_act, "gelu");
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_EQ(config.dropout, 0);
  EXPECT_EQ(config.attention_dropout, 0);
  EXPECT_EQ(config.layer_norm_eps, 1e-5);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_EQ(config.num_labels, 2);
  EXPECT_EQ(config.tokens(), 10);
}

TEST(DeepViTConfig, MisfitsAreRefused) {
  for (const char* key : {"image_size", "patch_size", "hidden_size", "num_hidden_layers", "num_attention_heads"}) {
    EXPECT_THAT(make_error({{key, nullptr}}), HasSubstr(std::string(key) + " is missing")) << key;
    EXPECT_THAT(make_error({{key, 0}}), HasSubstr(std::string(key) + " is 0; it must be an integer from 1")) << key;
  }
  EXPECT_THAT(make_error({{"patch_size", 4}}), HasSubstr("patch_size is 4; it must be a divisor of image_size, 15"));
  EXPECT_THAT(make_error({{"num_attention_heads", 5}}), HasSubstr("a divisor of hidden_size, 12"));
  for (const char* key : {"dropout", "attention_dropout", "layer_norm_eps", "initializer_range"}) {
    EXPECT_THAT(make_error({{key, 1.5}}), HasSubstr(std::string(key) + " is 1.5; it must be a number from 0 to 1"));
  }
  EXPECT_THAT(make_error({{"hidden_act", "tanh"}}), HasSubstr("silu, swish, gelu"));
  EXPECT_THAT(make_error({{"qkv_bias", 1}}), HasSubstr("true or false"));
}

TEST(DeepViTConfig, UnknownKeysAreRefused) {
  EXPECT_THAT(
      make_error({{"hidden_dropout_prob", 0.1}}),
      AllOf(HasSubstr("hidden_dropout_prob is 0.1; it must be absent"), HasSubstr("dropout, attention_dropout")));
  EXPECT_EQ(make_error({{"transformers_version", "5"}, {"dtype", "float32"}, {"pruned_heads", nullptr}}), kNoError);
}

}  // namespace
}  // namespace fsdp::models::deepvit_test
