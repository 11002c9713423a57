// Tests every kind of model that the trainer trains: training in shards as in one process, and the data of the kind.
#include "tasks/trained_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <optional>

#include "config/config_names.h"
#include "formats/safetensors/safetensors_writer.h"
#include "models/testing/small_models.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"
#include "testing/compared_training.h"
#include "testing/tiny_model.h"

namespace fsdp::trainer::trained_model_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

constexpr int64_t kSource = 7, kTarget = 5, kPairs = 31;

// Writes samples of a source and a target, each padded from a different position on.
std::string padded_pairs(const testing::TemporaryFolder& folder) {
  std::string tokens;
  for (int64_t sample = 0; sample < kPairs; ++sample) {
    const int64_t source = 1 + sample * 5 % kSource, target = 1 + sample * 3 % kTarget;
    for (int64_t i = 0; i < kSource; ++i) tokens += static_cast<char>(i < source ? 1 + (sample + i * i) % 29 : 0);
    for (int64_t i = 0; i < kTarget; ++i) tokens += static_cast<char>(i < target ? 1 + (sample * i + 3) % 29 : 0);
  }
  return folder.write("pairs", tokens);
}

struct Kind {
  std::string name;
  nlohmann::json model;
  bool has_batch_statistics = false;
  bool is_padded = false;
  double tolerance = 1e-5;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds{
      {"t5", models::small_t5()},
      {"t5_padded", models::small_t5(), false, true},
      {"regnet_x", models::small_regnet("x"), true},
      {"regnet_y", models::small_regnet("y"), true},
      {"deepvit", models::changed(models::small_deepvit(), {{"initializer_range", 0.2}}), true, false, 1e-4}};
  return kKinds;
}

Config config_for(const Kind& kind) {
  Config config = compared_config();
  config.data.train_batch_size = 2;
  if (kind.model["model_type"] == "t5") {
    config.data.max_seq_length = kSource;
    config.data.max_target_length = kTarget;
  } else if (kind.model["model_type"] == "regnet") {
    config.data.image_size = 37;
  } else {
    // Adam takes steps of the same length for gradients that consist of rounding errors only.
    config.optimizer.adam_epsilon = 1e-3;
  }
  return config;
}

struct Case {
  Kind kind;
  std::string strategy, wrap_policy = "transformer";
  int world_size = 2;
  std::optional<int64_t> sharding_factor = std::nullopt;
  int64_t accumulation_steps = 1;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.kind.name << ", " << c.strategy; }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Kind& kind : kinds()) {
    all.insert(all.end(), {{kind, "full_shard", "transformer", 1},
                           {kind, "full_shard", "transformer", 2},
                           {kind, "full_shard", "auto_units", 3},
                           {kind, "full_shard", "none", 4},
                           {kind, "full_shard", "transformer", 2, {}, 3},
                           {kind, "shard_grad_op", "transformer", 2},
                           {kind, "no_shard", "transformer", 3},
                           {kind, "hybrid_shard", "transformer", 4, 2},
                           {kind, "hybrid_shard_zero2", "size", 4, 2}});
  }
  return all;
}

class TrainedKinds : public ::testing::TestWithParam<Case> {};

TEST_P(TrainedKinds, TrainAsOneProcessDoes) {
  const Case& c = GetParam();
  testing::TemporaryFolder folder;
  Config config = config_for(c.kind);
  config.sharding.strategy = from_config_name<ShardingStrategy>(c.strategy);
  config.sharding.factor = c.sharding_factor;
  config.sharding.wrap_policy = from_config_name<UnitsBy>(c.wrap_policy);
  config.sharding.size_min_params = 300;
  if (c.wrap_policy == "auto_units") config.sharding.auto_units_target_bytes = 4000;
  config.steps.gradient_accumulation_steps = c.accumulation_steps;
  Subject subject{.make_model = [&] { return make_tiny_model(c.kind.model, 5); },
                  .has_batch_statistics = c.kind.has_batch_statistics};
  if (c.kind.is_padded) subject.dataset = padded_pairs(folder);
  expect_same(train_in_shards(config, c.world_size, subject), train_plainly(config, c.world_size, subject),
              c.kind.tolerance);
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainedKinds, ::testing::ValuesIn(cases()), [](const auto& info) {
  const Case& c = info.param;
  return c.kind.name + "_" + c.strategy + "_" + c.wrap_policy + "_" + std::to_string(c.world_size) + "_ranks_" +
         std::to_string(c.accumulation_steps) + "_passes";
});

std::unique_ptr<TrainedModel> trained(const nlohmann::json& model, const Config& config) {
  return make_trained_model(make_tiny_model(model, 5), config);
}

TEST(TrainedModel, KeysOfAnotherKindAreRefused) {
  const auto error = [](const nlohmann::json& model, const std::function<void(Config&)>& change) {
    Config config;
    config.data.max_seq_length = model["model_type"] == "llama" ? 9 : config.data.max_seq_length;
    change(config);
    return error_of([&] { trained(model, config); });
  };
  const auto target = [](Config& c) { c.data.max_target_length = 4; };
  const auto image = [](Config& c) { c.data.image_size = 8; };
  const auto length = [](Config& c) { c.data.max_seq_length = 8; };
  EXPECT_THAT(error(models::small_llama(), target),
              AllOf(HasSubstr("\"max_target_length\": 4"), HasSubstr("causal language model; accepted: null")));
  EXPECT_THAT(error(models::small_llama(), image), HasSubstr("\"image_size\": 8"));
  EXPECT_THAT(error(models::small_t5(), image), HasSubstr("sequence-to-sequence"));
  EXPECT_THAT(error(models::small_regnet(), target), HasSubstr("image classifier; accepted: null"));
  EXPECT_THAT(error(models::small_regnet(), length), HasSubstr("leave it at 1024"));
  EXPECT_THAT(error(models::small_deepvit(), image), HasSubstr("accepted: 15"));
  EXPECT_THAT(error(models::small_regnet(), [](Config& c) { c.model.fused_loss = true; }),
              HasSubstr("leave it at false"));
  EXPECT_EQ(error(models::small_deepvit(), [](Config& c) { c.data.image_size = 15; }), "no error");
  const auto by_document = [](Config& c) { c.model.attention_mask = AttentionMask::kBlockCausal; };
  EXPECT_THAT(error(models::small_llama(), by_document),
              AllOf(HasSubstr("\"attn_mask_type\": \"block_causal\""), HasSubstr("add \"eos_token_id\" to")));
  for (const nlohmann::json& other : {models::small_t5(), models::small_regnet()}) {
    EXPECT_THAT(error(other, by_document), HasSubstr("leave it at \"causal\""));
  }
}

TEST(TrainedModel, AttendsByDocumentIfAsked) {
  const torch::Tensor tokens = torch::arange(18).remainder(5).view({2, 9});
  const auto loss_of = [&](const nlohmann::json& ends, AttentionMask mask) {
    Config config;
    config.data.max_seq_length = 9;
    config.model.attention_mask = mask;
    return trained(models::changed(models::small_llama(), {{"eos_token_id", ends}}), config)
        ->loss({.inputs = tokens, .labels = tokens})
        .item<double>();
  };
  const auto model = make_tiny_model(models::small_llama(), 5);
  auto& causal = dynamic_cast<models::CausalLM&>(*model);
  const double whole = causal.forward(tokens, tokens).loss.item<double>();
  causal.attend_by_document({4});
  const double by_document = causal.forward(tokens, tokens).loss.item<double>();
  EXPECT_NE(whole, by_document);
  EXPECT_EQ(loss_of(4, AttentionMask::kCausal), whole);
  EXPECT_EQ(loss_of(4, AttentionMask::kBlockCausal), by_document);
  EXPECT_EQ(loss_of({30, 4}, AttentionMask::kBlockCausal), by_document);
  EXPECT_EQ(loss_of(30, AttentionMask::kBlockCausal), whole);
  EXPECT_THAT(error_of([&] { loss_of("</s>", AttentionMask::kCausal); }), HasSubstr("eos_token_id is \"</s>\""));
}

// ---------------------------------------------------------------- data

TEST(TokenPairs, AreCutMaskedAndCounted) {
  testing::TemporaryFolder folder;
  Config config;
  config.data.max_seq_length = 3;
  config.data.max_target_length = 2;
  const auto model = trained(models::small_t5(), config);
  const auto open = [&](const std::string& bytes) {
    return model->open_dataset({.text = folder.write("pairs", bytes)});
  };
  using namespace std::string_literals;
  const auto data = open("\1\2\3\4\5\6\7\0\10\0"s);
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(data->predictions(0), 2);
  EXPECT_EQ(data->predictions(1), 1);
  const Batch batch = data->batch({1, 0});
  EXPECT_TRUE(at::equal(batch.inputs, at::tensor({6, 7, 0, 1, 2, 3}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({8, -100, 4, 5}, at::kLong).view({2, 2})));
  EXPECT_TRUE(at::equal(batch.attention_mask, at::tensor({1, 1, 0, 1, 1, 1}, at::kLong).view({2, 3}).to(at::kBool)));
  EXPECT_EQ(model->sample_work(batch).tokens, 5);

  EXPECT_TRUE(open("\1\2\3\4\5"s)->batch({0}).attention_mask.all().item<bool>());
  const auto nothing = open("\1\2\3\4\5\1\2\3\0\0\0\0\0\4\5"s);
  EXPECT_EQ(nothing->predictions(0), 2);
  EXPECT_THAT(error_of([&] { nothing->predictions(1); }),
              HasSubstr("sample 1 (from token 5): its target is nothing but padding, token id 0"));
  EXPECT_THAT(error_of([&] { nothing->batch({0, 2}); }),
              HasSubstr("sample 2 (from token 10): its source is nothing but padding"));
  EXPECT_THAT(error_of([&] { open("\1\2"s); }), AllOf(HasSubstr("holds 2 tokens"), HasSubstr("max_target_length = 2")));
}

// All tokens of dummy data are predicted, including token id 0.
TEST(TokenPairs, OfDummyDataHaveNoPadding) {
  const auto model = trained(models::small_t5(), Config{});
  const auto data = model->open_dataset({.text = "dummy:3"});
  EXPECT_EQ(data->size(), 3);
  const Batch batch = data->batch({0, 1, 2});
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<int64_t>{3, 1024}));
  EXPECT_EQ(batch.labels.sizes(), (std::vector<int64_t>{3, 1024}));
  EXPECT_TRUE(batch.labels.eq(0).any().item<bool>());
  EXPECT_FALSE(batch.attention_mask.defined());
}

class ImageFiles : public ::testing::Test {
 protected:
  std::string write(const at::Tensor& images, const at::Tensor& labels) const {
    return write({{"images", images}, {"labels", labels}});
  }
  std::string write(const std::vector<std::pair<std::string, at::Tensor>>& tensors) const {
    std::vector<formats::TensorInfo> infos;
    for (const auto& [name, tensor] : tensors) infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    const std::string path = folder_.path("images.safetensors");
    formats::SafetensorsWriter writer(path, infos);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.finish();
    return path;
  }
  std::string error(const std::string& path) const {
    return error_of([&] { vit_->open_dataset({.text = path}); });
  }

  testing::TemporaryFolder folder_;
  std::unique_ptr<TrainedModel> vit_ = trained(models::small_deepvit(), Config{});  // 3 x 15 x 15, 7 classes
};

TEST_F(ImageFiles, BytesAreScaledAndNumbersTaken) {
  const at::Tensor bytes = (at::arange(2 * 3 * 15 * 15) % 256).to(at::kByte).view({2, 3, 15, 15});
  const auto data = vit_->open_dataset({.text = write(bytes, at::tensor({6, 2}, at::kInt))});
  ASSERT_EQ(data->size(), 2);
  const Batch batch = data->batch({1});
  EXPECT_EQ(batch.labels.item<int64_t>(), 2);
  EXPECT_TRUE(at::equal(batch.inputs, bytes.narrow(0, 1, 1).to(at::kFloat) / 255));
  const at::Tensor numbers = at::randn({1, 3, 15, 15}, at::kDouble);
  const auto floats = vit_->open_dataset({.text = write(numbers, at::tensor({0}, at::kLong))});
  EXPECT_TRUE(at::equal(floats->batch({0}).inputs, numbers.to(at::kFloat)));
}

TEST_F(ImageFiles, AMisfitIsNamed) {
  const auto zeros = [](std::vector<int64_t> sizes, at::ScalarType dtype = at::kByte) {
    return at::zeros(sizes, dtype);
  };
  const at::Tensor images = zeros({2, 3, 15, 15}), labels = zeros({2}, at::kLong);
  EXPECT_EQ(error(write(images, labels)), "no error");
  EXPECT_THAT(error(write({{"image", images}, {"labels", labels}})), HasSubstr("has no tensor \"images\""));
  EXPECT_THAT(error(write({{"images", images}})), HasSubstr("has no tensor \"labels\"; it must be [2]"));
  EXPECT_THAT(error(write(zeros({2, 1, 15, 15}), labels)),
              AllOf(HasSubstr("[2, 1, 15, 15]"), HasSubstr("[N, 3, 15, 15]")));
  EXPECT_THAT(error(write(zeros({2, 3, 14, 15}), labels)), HasSubstr("[2, 3, 14, 15]"));
  EXPECT_THAT(error(write(zeros({2, 3, 15, 15}, at::kInt), labels)), HasSubstr("of uint8 or floating point"));
  EXPECT_THAT(error(write(zeros({0, 3, 15, 15}), zeros({0}, at::kLong))), HasSubstr("N > 0"));
  EXPECT_THAT(error(write(images, zeros({3}, at::kLong))), HasSubstr("it must be [2], of integers"));
  EXPECT_THAT(error(write(images, zeros({2}, at::kFloat))), HasSubstr("of integers"));
  EXPECT_THAT(error(write(images, at::tensor({0, 7}, at::kLong))), HasSubstr("label 7 of sample 1"));
  EXPECT_THAT(error(write(images, at::tensor({-1, 0}, at::kLong))), HasSubstr("0 to 6"));
  EXPECT_THAT(error(folder_.path("none")), HasSubstr("none"));
  EXPECT_THAT(error(folder_.write("text", "no tensors here")), HasSubstr("text"));
}

TEST(DummyImages, AreOfTheSizeThatIsAskedFor) {
  Config config;
  const auto sizes = [&](const nlohmann::json& model) {
    return trained(model, config)->open_dataset({.text = "dummy:2"})->batch({0, 1}).inputs.sizes().vec();
  };
  EXPECT_EQ(sizes(models::small_deepvit()), (std::vector<int64_t>{2, 3, 15, 15}));
  EXPECT_EQ(sizes(models::small_regnet()), (std::vector<int64_t>{2, 3, 224, 224}));
  config.data.image_size = 11;
  EXPECT_EQ(sizes(models::small_regnet()), (std::vector<int64_t>{2, 3, 11, 11}));
  const auto data = trained(models::small_regnet(), config)->open_dataset({.text = "dummy:200"});
  std::vector<int64_t> all(200);
  std::iota(all.begin(), all.end(), 0);
  const Batch batch = data->batch(all);
  EXPECT_NEAR(batch.inputs.mean().item<double>(), 0.5, 0.01);
  EXPECT_EQ(std::get<0>(at::_unique(batch.labels)).numel(), 7);
  EXPECT_TRUE(at::equal(data->batch({150}).inputs, batch.inputs.narrow(0, 150, 1)));
}

}  // namespace
}  // namespace fsdp::trainer::trained_model_test
