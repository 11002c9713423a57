// Tests whole runs of models of every kind that are trained from the beginning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "config/config_names.h"
#include "config/config_reader.h"
#include "config/errors.h"
#include "formats/hugging_face/hf_folder.h"
#include "models/pretrained.h"
#include "models/testing/small_models.h"
#include "setup/training_inputs.h"
#include "support/faults/error_of.h"
#include "testing/tiny_model.h"
#include "testing/whole_run.h"

namespace fsdp::trainer::model_key_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

struct Kind {
  std::string name;
  nlohmann::json model;
  bool is_of_images = false;
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

class NewModels : public ::testing::TestWithParam<Kind> {
 protected:
  Config config() const {
    Config config = small_run(folder_);
    config.model.path = std::nullopt;
    config.model.definition = GetParam().model;
    if (GetParam().is_of_images) config.data.max_seq_length = Config{}.data.max_seq_length;
    if (GetParam().name == "regnet") config.data.image_size = 21;
    return config;
  }
  formats::HfFolder final_of(const std::string& run) const { return formats::HfFolder(folder_.path(run + "/final")); }

  testing::TemporaryFolder folder_;
};

TEST_P(NewModels, BeginWithTheSameWeightsOverAnyNumberOfRanks) {
  Config still = config();
  still.optimizer.learning_rate = 0;
  still.optimizer.weight_decay = 0;
  still.steps.max_steps = 1;
  still.output.do_eval = false;
  still.output.overwrite_output_dir = true;
  const auto expected = make_tiny_model(GetParam().model, static_cast<uint64_t>(still.steps.seed));
  const auto parameters = expected->named_parameters();
  for (const char* policy : {"transformer", "none", "auto_units"}) {
    still.sharding.wrap_policy = from_config_name<UnitsBy>(policy);
    for (const bool from_rank_0 : {false, true}) {
      still.sharding.sync_module_states = from_rank_0;
      for (int world_size : {1, 2, 3}) {
        run_whole(still, folder_, "still", world_size);
        const formats::HfFolder saved = final_of("still");
        for (const auto& info : models::checkpoint_tensors(*expected)) {
          const at::Tensor* parameter = parameters.find(info.name);
          if (parameter == nullptr) continue;  // a running statistic
          EXPECT_TRUE(torch::equal(saved.tensor(info.name), *parameter))
              << info.name << ", " << policy << ", " << world_size << " ranks";
        }
      }
    }
  }
}

TEST_P(NewModels, AreSavedAsTheyWereEvaluated) {
  const Config c = config();
  const Left left = run_whole(c, folder_, "run", 3);
  const auto model = models::load_pretrained<models::PretrainedModel>(final_of("run"), at::kFloat, at::kCPU);
  const auto trained = make_trained_model(model, c);
  model->eval();
  const auto data = trained->open_dataset(
      {.text = *c.data.eval_dataset, .role = DatasetRole::kEval, .seed = static_cast<uint64_t>(c.steps.seed)});
  const double loss = trained->loss(data->batch({0, 1, 2, 3, 4, 5, 6})).item<double>();
  EXPECT_NEAR(nlohmann::json::parse(left.metrics.at("eval")).at("eval_loss").get<double>(), loss, 1e-5 * loss);
}

TEST_P(NewModels, GoOnFromACheckpoint) {
  Config c = config();
  const Left want = run_whole(c, folder_, "whole", 2);
  c.checkpoints.save_steps = 2;
  const Left saving = run_whole(c, folder_, "parts", 2);
  EXPECT_EQ(saving.metrics, want.metrics);
  EXPECT_TRUE(saving.weights == want.weights);
  std::filesystem::remove_all(folder_.path("parts/checkpoint-4"));
  c.checkpoints.resume_from_checkpoint = "latest";
  const Left resumed = run_whole(c, folder_, "parts", 2);
  EXPECT_EQ(resumed.metrics, want.metrics);
  EXPECT_TRUE(resumed.weights == want.weights);
}

TEST_P(NewModels, TrainInLowPrecisionAndWithRecomputation) {
  Config c = config();
  const auto losses_of = [](const Left& left) {
    std::vector<double> losses;
    for (const auto& [step, line] : left.metrics) {
      const auto values = nlohmann::json::parse(line);
      if (values.contains("loss")) losses.push_back(values.at("loss").get<double>());
    }
    return losses;
  };
  const Left exact = run_whole(c, folder_, "exact", 2);
  c.model.activation_checkpointing = true;
  const Left recomputed = run_whole(c, folder_, "recomputed", 2);
  if (GetParam().name == "t5") {
    // The first forward needs no gradients of T5's position bias, and therefore uses another attention kernel.
    for (size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(losses_of(recomputed)[i], losses_of(exact)[i], 1e-6 * losses_of(exact)[i]);
  } else {
    EXPECT_EQ(recomputed.metrics, exact.metrics);
    EXPECT_TRUE(recomputed.weights == exact.weights);
  }
  c.precision.dtype = c10::kBFloat16;
  if (GetParam().is_of_images) c.precision.full_precision_classes = {"BatchNorm2d"};
  const auto low = losses_of(run_whole(c, folder_, "low", 2)), high = losses_of(exact);
  ASSERT_EQ(low.size(), 4U);
  EXPECT_NE(low, high);
  EXPECT_NEAR(low[0], high[0], 3e-2 * high[0]);
}

TEST_P(NewModels, MayFuseHeadAndLoss) {
  if (GetParam().is_of_images) return;  // refused: TrainedModel.KeysOfAnotherKindAreRefused
  Config c = config();
  const Left plain = run_whole(c, folder_, "plain", 2);
  c.model.fused_loss = true;
  const Left fused = run_whole(c, folder_, "fused", 2);
  for (const auto& [step, line] : plain.metrics) {
    const auto want = nlohmann::json::parse(line), got = nlohmann::json::parse(fused.metrics.at(step));
    const char* key = step == "eval" ? "eval_loss" : "loss";
    EXPECT_NEAR(got.at(key).get<double>(), want.at(key).get<double>(), 1e-4) << step;
  }
  const auto ids = torch::zeros({1, 5}, torch::kInt64);
  for (const bool on : {false, true}) {
    c.model.fused_loss = on;
    auto model = make_tiny_model(GetParam().model, 3);
    make_trained_model(model, c);
    if (auto causal = std::dynamic_pointer_cast<models::CausalLM>(model)) {
      EXPECT_NE(causal->forward(ids, ids).logits.defined(), on);
    } else {
      EXPECT_NE(std::dynamic_pointer_cast<models::Seq2SeqLM>(model)->forward(ids, ids).logits.defined(), on);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, NewModels,
                         ::testing::Values(Kind{"llama", models::small_llama()}, Kind{"gpt2", models::small_gpt2()},
                                           Kind{"t5", models::small_t5()}, Kind{"regnet", models::small_regnet(), true},
                                           Kind{"deepvit", models::small_deepvit(), true}),
                         [](const auto& info) { return info.param.name; });

TEST(ModelKey, NamesAPreset) {
  Config config;
  config.model.definition = "gpt2";
  const TrainingInputs inputs = open_training_inputs(config, 2);
  EXPECT_EQ(inputs.model_config.at("n_embd"), 768);
  int64_t count = 0;
  for (const at::Tensor& parameter : inputs.model->module().parameters()) count += parameter.numel();
  EXPECT_EQ(count - 50257 * 768, 124439808);  // the head is the embedding, so it is listed twice
  EXPECT_FALSE(inputs.weights);
}

// Creates only the records of 175 billion parameters.
TEST(ModelKey, TakesModelsThatNoMachineHolds) {
  Config config;
  config.model.definition = "mingpt-175b";
  EXPECT_NO_THROW(open_training_inputs(config, 8));
}

TEST(ModelKey, MistakesAreNamed) {
  Config config;
  const auto error = [&](const nlohmann::json& model) {
    config.model.definition = model;
    return error_of([&] { open_training_inputs(config, 1); });
  };
  EXPECT_THAT(error("gpt-2"), AllOf(HasSubstr("key \"model\""), HasSubstr("gpt2-xl"), HasSubstr("t5-11b")));
  EXPECT_THAT(error({{"model_type", "bert"}}), AllOf(HasSubstr("key \"model\""), HasSubstr("model_type is \"bert\"")));
  EXPECT_THAT(error(models::changed(models::small_t5(), {{"d_kv", 0}})), AllOf(HasSubstr("d_kv is 0")));
  EXPECT_THAT(error(nlohmann::json::object()), HasSubstr("model_type is missing"));
}

TEST(ModelKey, IsGivenInsteadOfAPath) {
  testing::TemporaryFolder folder;
  const auto read = [&](const std::string& text, const std::vector<std::string>& overrides = {}) {
    return read_config(folder.write("config.json", text), overrides);
  };
  EXPECT_EQ(read(R"({"model": "gpt2"})").model.definition, "gpt2");
  EXPECT_EQ(read(R"({"model": {"model_type": "t5"}})").model.definition->at("model_type"), "t5");
  EXPECT_EQ(read("{}", {"model=t5-2b"}).model.definition, "t5-2b");
  EXPECT_EQ(read("{}", {R"(model={"n_embd": 8})"}).model.definition->at("n_embd"), 8);
  EXPECT_EQ(read(R"({"model": "gpt2"})", {"model=null", "model_path=m"}).model.definition, std::nullopt);
  const auto error = [&](const std::string& text) { return error_of([&] { read(text); }); };
  EXPECT_THAT(error("{}"), AllOf(HasSubstr("\"model_path\" is missing"), HasSubstr("\"model\"")));
  EXPECT_THAT(error(R"({"model": "gpt2", "model_path": "m"})"), HasSubstr("only one of them"));
  EXPECT_THAT(error(R"({"model": 3})"), HasSubstr("not of type string, object or null"));
  EXPECT_THAT(error(R"({"model": ""})"), HasSubstr("is empty"));
}

}  // namespace
}  // namespace fsdp::trainer::model_key_test
