// Properties of the models of every architecture.
#include "models/causal_lm.h"

#include <torch/torch.h>

#include "models/layers.h"
#include "models/testing/model_tests.h"
#include "models/testing/operator_calls.h"

namespace fsdp::models::causal_lm_test {
namespace {

using namespace model_tests;
using ::testing::Not;

class CausalLMs : public ::testing::TestWithParam<SmallModel> {
 protected:
  static std::shared_ptr<CausalLM> make(const json& changes = {}, c10::ScalarType dtype = torch::kFloat64,
                                        c10::Device device = torch::kCPU) {
    return make_causal_lm(changed(GetParam().config, changes), dtype, device);
  }
};

TEST_P(CausalLMs, BlocksHaveTheClassNameThatPoliciesAskFor) {
  const auto model = make({}, torch::kFloat32, torch::kMeta);
  expect_blocks(*model, GetParam().block, 2);
}

TEST_P(CausalLMs, ATiedHeadIsTheEmbeddingItself) {
  const auto parameters = make({{"tie_word_embeddings", true}}, torch::kFloat32, torch::kMeta)->named_parameters();
  const auto embedding = parameters[GetParam().embedding];
  EXPECT_EQ(parameters["lm_head.weight"].unsafeGetTensorImpl(), embedding.unsafeGetTensorImpl());
  EXPECT_FALSE(make()->named_parameters()["lm_head.weight"].is_same(embedding));
}

TEST_P(CausalLMs, MetaConstructionDrawsNoRandomNumbers) {
  const auto model = expect_meta_without_draws([] { return make({}, torch::kFloat32, torch::kMeta); });
  EXPECT_EQ(model->buffers().size(), 0u);
}

TEST_P(CausalLMs, InitialisationFollowsTheSeed) {
  const auto seeded = [](uint64_t seed) {
    torch::manual_seed(seed);
    return make()->named_parameters();
  };
  const auto parameters = seeded(7), again = seeded(7), other = seeded(8);
  for (const auto& parameter : parameters) {
    EXPECT_TRUE(torch::equal(parameter.value(), again[parameter.key()])) << parameter.key();
    const bool drawn = parameter.value().dim() >= 2;
    EXPECT_EQ(torch::equal(parameter.value(), other[parameter.key()]), !drawn) << parameter.key();
  }
}

std::vector<torch::Tensor> loss_and_gradients(CausalLM& model) {
  torch::manual_seed(9);
  model.zero_grad();
  const auto ids = (torch::arange(10) * 7 % 31).view({2, 5});
  const auto loss = model.forward(ids, ids).loss;
  loss.backward();
  std::vector<torch::Tensor> result = {loss.detach()};
  for (const auto& parameter : model.parameters()) result.push_back(parameter.grad().clone());
  return result;
}

TEST_P(CausalLMs, ActivationCheckpointingChangesNoNumber) {
  json changes = {{GetParam().layers_key, 3}, {"tie_word_embeddings", true}};
  for (const std::string& key : GetParam().dropout_keys) set_dropout(changes, key, 0.3);
  const auto model = make(changes, torch::kFloat32);
  initialize_parameters(*model, 0.3);
  const auto want = loss_and_gradients(*model);
  const auto names = model->named_parameters().keys();
  const std::string& activation = GetParam().activation;
  for (const auto& [policy, recomputed] : {std::pair{CheckpointPolicy::full(), 3},
                                           {CheckpointPolicy::every(2), 2},
                                           {CheckpointPolicy::selected_operators({"aten::mm", activation}), 0},
                                           {CheckpointPolicy(), 0}}) {
    model->set_activation_checkpointing(policy);
    OperatorCalls calls(activation);
    const auto got = loss_and_gradients(*model);
    EXPECT_EQ(calls.count(), 3 + recomputed);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
    EXPECT_EQ(model->named_parameters().keys(), names);
  }
}

TEST_P(CausalLMs, DtypesOfLossAndLogits) {
  const auto ids = torch::randint(31, {2, 5});
  for (auto [dtype, loss] : {std::pair{torch::kFloat32, torch::kFloat32},
                             {torch::kBFloat16, torch::kFloat32},
                             {torch::kFloat64, torch::kFloat64}}) {
    const auto output = make({}, dtype)->forward(ids, ids);
    EXPECT_EQ(output.logits.scalar_type(), dtype);
    EXPECT_EQ(output.loss.scalar_type(), loss);
    EXPECT_EQ(output.logits.sizes(), (std::vector<int64_t>{2, 5, 31}));
  }
}

// Compares with the definition, position by position.
TEST_P(CausalLMs, LossIsTheMeanOverPredictedTokens) {
  torch::manual_seed(1);
  const auto model = make({{"initializer_range", 0.5}});
  const auto ids = torch::randint(31, {2, 5});
  auto labels = ids.clone();
  labels.index_put_({0, 2}, -100);
  const auto output = model->forward(ids, labels);
  const auto log_probabilities = torch::log_softmax(output.logits, -1);
  double sum = 0;
  int count = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 4; ++i) {
      if (const int64_t label = labels[b][i + 1].item<int64_t>(); label != -100) {
        sum -= log_probabilities[b][i][label].item<double>();
        ++count;
      }
    }
  }
  EXPECT_EQ(count, 7);
  EXPECT_NEAR(output.loss.item<double>(), sum / count, 1e-12);
  EXPECT_FALSE(model->forward(ids).loss.defined());
}

TEST_P(CausalLMs, TheFutureDoesNotMatter) {
  torch::manual_seed(2);
  const auto model = make({{"initializer_range", 0.5}});
  const auto ids = torch::randint(31, {1, 9});
  auto changed_ids = ids.clone();
  changed_ids[0][6] = (changed_ids[0][6] + 1) % 31;
  const auto before = model->forward(ids).logits, after = model->forward(changed_ids).logits;
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 6), after.narrow(1, 0, 6), 0, 1e-12));
  EXPECT_FALSE(torch::allclose(before.narrow(1, 6, 3), after.narrow(1, 6, 3), 0, 1e-3));
}

TEST_P(CausalLMs, DropoutIsAppliedInTrainingOnly) {
  const auto ids = torch::randint(31, {1, 9});
  for (const std::string& key : GetParam().dropout_keys) {
    json changes = {{"initializer_range", 0.5}};
    set_dropout(changes, key, 0.5);
    const auto model = make(changes);
    EXPECT_FALSE(torch::equal(model->forward(ids).logits, model->forward(ids).logits)) << key;
    model->eval();
    EXPECT_TRUE(torch::equal(model->forward(ids).logits, model->forward(ids).logits)) << key;
  }
  const auto model = make();
  EXPECT_TRUE(torch::equal(model->forward(ids).logits, model->forward(ids).logits));
}

TEST_P(CausalLMs, ShapesAreChecked) {
  const auto model = make();
  const auto ids = torch::zeros({2, 5}, torch::kInt64);
  EXPECT_THAT(error_of([&] { model->forward(ids.view(-1)); }), HasSubstr("[10]"));
  EXPECT_THAT(error_of([&] { model->forward(ids, ids.narrow(1, 0, 4)); }), HasSubstr("[2, 4]"));
}

TEST_P(CausalLMs, IntegerDtypesAreRefused) {
  EXPECT_THAT(error_of([] { make({}, torch::kInt32); }), HasSubstr("Int"));
}

INSTANTIATE_TEST_SUITE_P(Architectures, CausalLMs, ::testing::ValuesIn(small_models()),
                         [](const auto& info) { return info.param.name; });

// Logits, and the gradients of a loss in which each token counts the same.
TEST_P(CausalLMs, ADocumentIsComputedAsIfItWereAlone) {
  constexpr int64_t kEnd = 30;
  const auto model = make();
  initialize_parameters(*model, 0.3);
  const std::vector<int64_t> tokens{1, 2, 3, 4, 5, 6, kEnd, 7, 8, kEnd, 9, 10, 11, 12, 3, 2, 1, 4, 5, 6};
  const torch::Tensor ids = torch::tensor(tokens).view({2, 10});
  const std::vector<torch::Tensor> alone = {ids[0].slice(0, 0, 7), ids[0].slice(0, 7, 10), ids[1]};
  std::vector<torch::Tensor> logits;
  for (const torch::Tensor& document : alone) logits.push_back(model->forward(document.unsqueeze(0)).logits[0]);
  const torch::Tensor expected = torch::cat(logits);
  expected.pow(2).sum().backward();
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : model->parameters()) gradients.push_back(parameter.grad().clone());
  model->attend_by_document({kEnd, 29});
  for (const CheckpointPolicy& policy : {CheckpointPolicy(), CheckpointPolicy::full()}) {
    model->set_activation_checkpointing(policy);
    model->zero_grad();
    const torch::Tensor together = model->forward(ids).logits.flatten(0, 1);
    EXPECT_TRUE(together.allclose(expected, 1e-12, 1e-12));
    together.pow(2).sum().backward();
    for (size_t i = 0; i < gradients.size(); ++i) {
      const torch::Tensor gradient = model->parameters()[i].grad();
      EXPECT_TRUE(gradient.allclose(gradients[i], 1e-10, 1e-12)) << model->named_parameters().keys()[i];
    }
  }
  model->attend_by_document({});
  EXPECT_FALSE(model->forward(ids).logits.flatten(0, 1).allclose(expected, 1e-3, 1e-3));
}

TEST(Architectures, AreSaidByTypeOrClass) {
  json config = small_gpt2();
  config.erase("architectures");
  EXPECT_EQ(causal_lm_error(config), kNoError);
  config["architectures"] = json::array();
  EXPECT_EQ(causal_lm_error(config), kNoError);
  config = small_gpt2();
  config.erase("model_type");
  EXPECT_EQ(causal_lm_error(config), kNoError);
  EXPECT_THAT(causal_lm_error(json::object()),
              AllOf(HasSubstr("model_type is missing"), HasSubstr("one of: llama, qwen2")));
  EXPECT_THAT(causal_lm_error(json::array()), HasSubstr("expected a JSON object"));
}

TEST(Architectures, UnknownOnesAndThoseThatDisagreeAreRefused) {
  const auto error = [](const json& changes) { return causal_lm_error(changed(small_gpt2(), changes)); };
  EXPECT_THAT(error({{"model_type", "bert"}}),
              AllOf(HasSubstr("model_type is \"bert\""), HasSubstr("one of: llama, qwen2"), Not(HasSubstr("t5"))));
  EXPECT_THAT(
      error({{"architectures", {"GPT2ForTokenClassification"}}}),
      AllOf(HasSubstr("architectures is [\"GPT2ForTokenClassification\"]"), HasSubstr("one of: GPT2LMHeadModel")));
  EXPECT_THAT(error({{"architectures", "GPT2LMHeadModel"}}), HasSubstr("must be an array"));
  EXPECT_THAT(error({{"architectures", json::object()}}), HasSubstr("must be an array"));
  EXPECT_THAT(error({{"model_type", "llama"}}),
              AllOf(HasSubstr("architectures is [\"GPT2LMHeadModel\"]"), HasSubstr("one of: LlamaForCausalLM")));
}

}  // namespace
}  // namespace fsdp::models::causal_lm_test
