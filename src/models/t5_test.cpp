#include "models/t5.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "models/causal_lm.h"
#include "models/pretrained.h"
#include "models/testing/counted_flops.h"
#include "models/testing/model_tests.h"
#include "models/testing/operator_calls.h"

namespace fsdp::models::t5_test {
namespace {

using namespace model_tests;

json with(const char* key, const json& value) { return changed(small_t5(), {{key, value}}); }

std::shared_ptr<Seq2SeqLM> make(const json& changes = {}, c10::ScalarType dtype = torch::kFloat64,
                                c10::Device device = torch::kCPU) {
  return make_seq2seq_lm(changed(small_t5(), changes), dtype, device);
}

std::string make_error(const json& config) {
  return error_of([&] { make_seq2seq_lm(config, torch::kFloat32, torch::kMeta); });
}

torch::Tensor some_ids(int64_t batch, int64_t length, int64_t step = 7) {
  return (torch::arange(batch * length) * step % 31).view({batch, length});
}

const std::vector<std::string>& names_of_the_embedding() {
  static const std::vector<std::string> kNames{"shared.weight", "encoder.embed_tokens.weight",
                                               "decoder.embed_tokens.weight", "lm_head.weight"};
  return kNames;
}

TEST(T5, FqnsAreThoseOfHuggingFace) {
  const auto model = make({{"num_layers", 1}, {"is_gated_act", true}}, torch::kFloat32, torch::kMeta);
  std::vector<std::string> names;
  for (const auto& tensor : checkpoint_tensors(*model)) names.push_back(tensor.name);
  const std::string e = "encoder.block.0.layer.", d = "decoder.block.0.layer.";
  const std::string self = "0.SelfAttention.", cross = "1.EncDecAttention.", dense = ".DenseReluDense.";
  EXPECT_THAT(
      names,
      ElementsAre("shared.weight", e + self + "q.weight", e + self + "k.weight", e + self + "v.weight",
                  e + self + "o.weight", e + self + "relative_attention_bias.weight", e + "0.layer_norm.weight",
                  e + "1" + dense + "wi_0.weight", e + "1" + dense + "wi_1.weight", e + "1" + dense + "wo.weight",
                  e + "1.layer_norm.weight", "encoder.final_layer_norm.weight", d + self + "q.weight",
                  d + self + "k.weight", d + self + "v.weight", d + self + "o.weight",
                  d + self + "relative_attention_bias.weight", d + "0.layer_norm.weight", d + cross + "q.weight",
                  d + cross + "k.weight", d + cross + "v.weight", d + cross + "o.weight", d + "1.layer_norm.weight",
                  d + "2" + dense + "wi_0.weight", d + "2" + dense + "wi_1.weight", d + "2" + dense + "wo.weight",
                  d + "2.layer_norm.weight", "decoder.final_layer_norm.weight", "lm_head.weight"));
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters[e + self + "q.weight"].sizes(), (std::vector<int64_t>{15, 12}));
  EXPECT_EQ(parameters[e + self + "relative_attention_bias.weight"].sizes(), (std::vector<int64_t>{6, 3}));
}

TEST(T5, TheSharedEmbeddingHasItsFourNames) {
  for (bool tied : {false, true}) {
    const auto parameters = make({{"tie_word_embeddings", tied}}, torch::kFloat32, torch::kMeta)->named_parameters();
    for (const std::string& name : names_of_the_embedding()) {
      EXPECT_EQ(parameters[name].is_same(parameters["shared.weight"]), tied || name != "lm_head.weight") << name;
    }
  }
}

TEST(T5, BlocksHaveTheClassNameThatPoliciesAskFor) {
  const auto model = make({{"num_decoder_layers", 3}}, torch::kFloat32, torch::kMeta);
  expect_blocks(*model, "T5Block", 5);
  EXPECT_EQ(model->vocab_size(), 31);
}

TEST(T5, MetaConstructionDrawsNoRandomNumbers) {
  expect_meta_without_draws([] { return make({}, torch::kFloat32, torch::kMeta); });
}

// Returns the std that transformers uses for parameters whose names have these suffixes, without initializer_factor.
double relative_std(const std::string& name, double width, double inner, double head, double dense) {
  if (name.ends_with(".q.weight")) return 1 / std::sqrt(width * head);
  if (name.ends_with(".o.weight")) return 1 / std::sqrt(inner);
  if (name.ends_with(".wo.weight")) return 1 / std::sqrt(dense);
  const auto& embedding = names_of_the_embedding();
  const bool of_tokens = std::find(embedding.begin(), embedding.end(), name) != embedding.end();
  return of_tokens ? 1 : 1 / std::sqrt(width);
}

// The std of the smallest weight, 300 x 30 values, is known to 0.75 %.
TEST(T5, InitialisationIsThatOfTransformers) {
  torch::manual_seed(7);
  const auto model = make({{"d_model", 120},
                           {"d_kv", 5},
                           {"num_heads", 30},
                           {"d_ff", 200},
                           {"vocab_size", 301},
                           {"relative_attention_num_buckets", 300},
                           {"relative_attention_max_distance", 400},
                           {"feed_forward_proj", "gated-gelu"},
                           {"initializer_factor", 0.5}});
  for (const auto& parameter : model->named_parameters()) {
    const torch::Tensor value = parameter.value();
    if (value.dim() == 1) {
      EXPECT_TRUE(value.eq(0.5).all().item<bool>()) << parameter.key();
      continue;
    }
    const double std = 0.5 * relative_std(parameter.key(), 120, 150, 5, 200);
    EXPECT_NEAR(value.std().item<double>(), std, 0.03 * std) << parameter.key();
    EXPECT_NEAR(value.mean().item<double>(), 0, 0.05 * std) << parameter.key();
  }
}

std::vector<torch::Tensor> loss_and_gradients(Seq2SeqLM& model) {
  torch::manual_seed(9);
  model.zero_grad();
  auto mask = torch::ones({2, 6}, torch::kInt64);
  mask[1][5] = 0;
  const auto loss = model.forward(some_ids(2, 6), some_ids(2, 5, 3), mask).loss;
  loss.backward();
  std::vector<torch::Tensor> result = {loss.detach()};
  for (const auto& parameter : model.parameters()) result.push_back(parameter.grad().clone());
  return result;
}

// Encoder and decoder have 3 blocks each.
TEST(T5, ActivationCheckpointingChangesNoNumber) {
  torch::manual_seed(4);
  const auto model = make({{"num_layers", 3}, {"tie_word_embeddings", true}, {"dropout_rate", 0.3}}, torch::kFloat32);
  const auto want = loss_and_gradients(*model);
  const auto names = model->named_parameters().keys();
  for (const auto& [policy, recomputed] : {std::pair{CheckpointPolicy::full(), 6},
                                           {CheckpointPolicy::every(2), 4},
                                           {CheckpointPolicy::selected_operators({"aten::mm", "aten::relu"}), 0},
                                           {CheckpointPolicy(), 0}}) {
    model->set_activation_checkpointing(policy);
    OperatorCalls calls("aten::relu");
    const auto got = loss_and_gradients(*model);
    EXPECT_EQ(calls.count(), 6 + recomputed);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
    EXPECT_EQ(model->named_parameters().keys(), names);
  }
}

TEST(T5, DtypesOfLossAndLogits) {
  for (auto [dtype, loss] : {std::pair{torch::kFloat32, torch::kFloat32},
                             {torch::kBFloat16, torch::kFloat32},
                             {torch::kFloat64, torch::kFloat64}}) {
    const auto output = make({}, dtype)->forward(some_ids(2, 6), some_ids(2, 5), torch::ones({2, 6}, torch::kBool));
    EXPECT_EQ(output.logits.scalar_type(), dtype);
    EXPECT_EQ(output.loss.scalar_type(), loss);
    EXPECT_EQ(output.logits.sizes(), (std::vector<int64_t>{2, 5, 31}));
  }
}

// Compares with the definition, position by position: logits i are for label i.
TEST(T5, LossIsTheMeanOverPredictedTokens) {
  auto labels = some_ids(2, 5, 3).clone();
  labels.index_put_({0, 2}, -100);
  const auto output = make()->forward(some_ids(2, 6), labels);
  const auto log_probabilities = torch::log_softmax(output.logits, -1);
  double sum = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 5; ++i) {
      const auto label = labels[b][i].item<int64_t>();
      if (label != -100) sum -= log_probabilities[b][i][label].item<double>();
    }
  }
  EXPECT_NEAR(output.loss.item<double>(), sum / 9, 1e-12);
}

bool differ(const torch::Tensor& a, const torch::Tensor& b) { return !torch::allclose(a, b, 0, 1e-6); }

// Label 6 is read at position 7, and an ignored label is read as padding.
TEST(T5, TheDecoderReadsTheLabelsBeforeIt) {
  torch::manual_seed(2);
  const auto model = make({{"pad_token_id", 4}, {"decoder_start_token_id", 9}});
  const auto ids = some_ids(1, 8);
  const auto logits_with = [&](int64_t position, int64_t label) {
    auto labels = some_ids(1, 10, 3).clone();
    labels[0][position] = label;
    return model->forward(ids, labels).logits;
  };
  const auto before = logits_with(6, 1), after = logits_with(6, 2);
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 7), after.narrow(1, 0, 7), 0, 1e-12));
  for (int64_t i = 7; i < 10; ++i) EXPECT_TRUE(differ(before.select(1, i), after.select(1, i))) << i;
  EXPECT_TRUE(torch::equal(logits_with(6, -100), logits_with(6, 4)));
  const auto other_start = make_seq2seq_lm(with("decoder_start_token_id", 8), torch::kFloat64, torch::kCPU);
  const auto values = model->named_parameters();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : other_start->named_parameters()) parameter.value().copy_(values[parameter.key()]);
  EXPECT_TRUE(differ(other_start->forward(ids, some_ids(1, 10)).logits.select(1, 0),
                     model->forward(ids, some_ids(1, 10)).logits.select(1, 0)));
}

TEST(T5, AllOfTheSourceMattersButItsPadding) {
  torch::manual_seed(2);
  const auto model = make();
  const auto labels = some_ids(1, 5, 3);
  const auto logits_with = [&](int64_t position, int64_t token, bool masked) {
    auto ids = some_ids(1, 8).clone(), mask = torch::ones({1, 8}, torch::kInt64);
    ids[0][position] = token;
    if (masked) mask[0][position] = 0;
    return model->forward(ids, labels, mask).logits;
  };
  for (int64_t position : {0, 7}) {
    EXPECT_TRUE(differ(logits_with(position, 1, false), logits_with(position, 2, false)));
    EXPECT_TRUE(torch::allclose(logits_with(position, 1, true), logits_with(position, 2, true), 0, 1e-12));
  }
}

TEST(T5, DropoutIsAppliedInTrainingOnly) {
  const auto model = make({{"dropout_rate", 0.5}});
  const auto logits = [&] { return model->forward(some_ids(1, 6), some_ids(1, 5)).logits; };
  EXPECT_FALSE(torch::equal(logits(), logits()));
  model->eval();
  EXPECT_TRUE(torch::equal(logits(), logits()));
}

// The residual stream exceeds the range of fp16.
TEST(T5, HalfPrecisionStaysFinite) {
  const auto model = make({{"initializer_factor", 4}}, torch::kFloat16);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->named_parameters()) {
    if (parameter.key().ends_with("wo.weight")) parameter.value().fill_(30000);
  }
  EXPECT_TRUE(model->forward(some_ids(1, 6), some_ids(1, 5)).logits.isfinite().all().item<bool>());
}

TEST(T5, ShapesAreChecked) {
  const auto model = make();
  const auto ids = torch::zeros({2, 6}, torch::kInt64), labels = torch::zeros({2, 5}, torch::kInt64);
  EXPECT_THAT(error_of([&] { model->forward(ids.view(-1), labels); }), HasSubstr("[12]"));
  EXPECT_THAT(error_of([&] { model->forward(ids, {}); }), HasSubstr("labels are missing"));
  EXPECT_THAT(error_of([&] { model->forward(ids, labels.view(-1)); }), HasSubstr("[10]"));
  EXPECT_THAT(error_of([&] { model->forward(ids, labels.narrow(0, 0, 1)); }), HasSubstr("[1, 5]"));
  EXPECT_THAT(error_of([&] { model->forward(ids, labels.narrow(1, 0, 0)); }), HasSubstr("[2, 0]"));
  EXPECT_THAT(error_of([&] { model->forward(ids, labels, labels); }), HasSubstr("attention_mask is of shape [2, 5]"));
  EXPECT_THAT(error_of([] { make({}, torch::kInt32); }), HasSubstr("Int"));
}

TEST(T5, FlopsPerSample) {
  // Counted by hand, weights: attention 4 x 12x15; dense 2 x 12x20; 2 encoder and 3 decoder blocks; head 12x31. In
  // cross-attention, 2 of 4 weights are for the 7 source tokens. Scores: 15 wide.
  const double of_source = 2 * (720 + 480) + 3 * 360, of_target = 3 * (720 + 360 + 480) + 372;
  const double scores = 2 * (7 * 7) + 3 * (4 * 4 + 4 * 7);
  const auto model = make({{"num_decoder_layers", 3}}, torch::kFloat32, torch::kMeta);
  EXPECT_EQ(model->flops_per_sample(7, 4), 6 * (of_source * 7 + of_target * 4) + 12 * 15 * scores);
  const auto gated = make({{"num_decoder_layers", 3}, {"is_gated_act", true}}, torch::kFloat32, torch::kMeta);
  EXPECT_EQ(gated->flops_per_sample(7, 4) - model->flops_per_sample(7, 4), 6 * 240 * (2 * 7 + 3 * 4));
}

TEST(T5, FlopsAreThoseOfAStep) {
  for (bool gated : {false, true}) {
    const auto model = make({{"num_decoder_layers", 3}, {"is_gated_act", gated}});
    CountedFlops counted;
    model->forward(some_ids(2, 7), some_ids(2, 4)).loss.backward();
    EXPECT_EQ(counted.count(), 2 * model->flops_per_sample(7, 4));
  }
}

TEST(T5, IsNoCausalLM) {
  EXPECT_THAT(causal_lm_error(small_t5()),
              AllOf(HasSubstr("model_type t5 (T5ForConditionalGeneration) is a sequence-to-sequence language model"),
                    HasSubstr("one of: llama, qwen2")));
  EXPECT_THAT(make_error(small_gpt2()), AllOf(HasSubstr("model_type gpt2 (GPT2LMHeadModel) is a causal language model"),
                                              HasSubstr("one of: t5")));
  EXPECT_THAT(make_error(with("architectures", {"T5EncoderModel"})), HasSubstr("T5ForConditionalGeneration"));
}

TEST(T5Config, DefaultsAreThoseOfTransformers) {
  const T5Config config = parse_t5_config({{"vocab_size", 31},
                                           {"d_model", 12},
                                           {"d_kv", 5},
                                           {"d_ff", 20},
                                           {"num_layers", 2},
                                           {"num_heads", 3},
                                           {"decoder_start_token_id", 0}});
  EXPECT_EQ(config.num_decoder_layers, 2);
  EXPECT_EQ(config.relative_attention_num_buckets, 32);
  EXPECT_EQ(config.relative_attention_max_distance, 128);
  EXPECT_EQ(config.dropout_rate, 0.1);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-6);
  EXPECT_EQ(config.initializer_factor, 1.0);
  EXPECT_EQ(config.dense_act_fn, "relu");
  EXPECT_EQ(config.pad_token_id, 0);
  EXPECT_TRUE(config.tie_word_embeddings && config.scale_decoder_outputs && !config.is_gated_act);
}

TEST(T5Config, TheFeedForwardIsSaidByOneKeyOrThree) {
  const auto parse = [](const json& changes) {
    const T5Config config = parse_t5_config(changed(small_t5(), changes));
    return std::pair(config.dense_act_fn, config.is_gated_act);
  };
  EXPECT_EQ(parse({{"feed_forward_proj", "gelu"}}), std::pair(std::string("gelu"), false));
  EXPECT_EQ(parse({{"feed_forward_proj", "gated-gelu"}}), std::pair(std::string("gelu_new"), true));
  EXPECT_EQ(parse({{"feed_forward_proj", "gated-silu"}}), std::pair(std::string("silu"), true));
  EXPECT_EQ(parse({{"feed_forward_proj", "gated-gelu"}, {"dense_act_fn", "gelu"}, {"is_gated_act", false}}),
            std::pair(std::string("gelu"), false));
}

TEST(T5Config, OutputsAreScaledWhereTheHeadIsTied) {
  EXPECT_FALSE(parse_t5_config(with("tie_word_embeddings", false)).scale_decoder_outputs);
  EXPECT_TRUE(parse_t5_config(with("tie_word_embeddings", true)).scale_decoder_outputs);
  EXPECT_TRUE(parse_t5_config(with("scale_decoder_outputs", true)).scale_decoder_outputs);
}

TEST(T5Config, MissingKeys) {
  for (const char* key : {"vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"}) {
    json config = small_t5();
    config.erase(key);
    EXPECT_THAT(make_error(config), AllOf(HasSubstr(std::string(key) + " is missing"), HasSubstr("integer")));
  }
  EXPECT_THAT(make_error(with("decoder_start_token_id", nullptr)),
              HasSubstr("decoder_start_token_id is missing; it must be an integer from 0 to vocab_size - 1, 30"));
}

TEST(T5Config, WrongTypesAndValues) {
  EXPECT_THAT(make_error(with("d_model", "12")), HasSubstr("d_model is \"12\"; it must be an integer"));
  EXPECT_THAT(make_error(with("num_decoder_layers", 0)), HasSubstr("num_decoder_layers is 0"));
  EXPECT_THAT(make_error(with("relative_attention_num_buckets", 3)),
              HasSubstr("num_buckets is 3; it must be at least 4"));
  EXPECT_THAT(make_error(with("relative_attention_max_distance", 3)),
              AllOf(HasSubstr("max_distance is 3"), HasSubstr("more than half of relative_attention_num_buckets, 3")));
  EXPECT_THAT(make_error(with("dropout_rate", 1.5)), HasSubstr("dropout_rate is 1.5; it must be a number from 0 to 1"));
  EXPECT_THAT(make_error(with("layer_norm_epsilon", "1e-6")), HasSubstr("layer_norm_epsilon is \"1e-6\""));
  EXPECT_THAT(make_error(with("initializer_factor", -1)), HasSubstr("initializer_factor is -1"));
  EXPECT_THAT(make_error(with("feed_forward_proj", "gated-softmax")),
              AllOf(HasSubstr("feed_forward_proj is \"gated-softmax\""), HasSubstr("relu, gated-silu")));
  EXPECT_THAT(make_error(with("dense_act_fn", "gated-gelu")), HasSubstr("dense_act_fn is \"gated-gelu\""));
  for (const char* key : {"pad_token_id", "decoder_start_token_id"}) {
    EXPECT_THAT(make_error(with(key, 31)), HasSubstr(std::string(key) + " is 31; it must be an integer from 0"));
    EXPECT_THAT(make_error(with(key, -1)), HasSubstr(std::string(key) + " is -1"));
  }
  for (const char* key : {"is_gated_act", "tie_word_embeddings", "scale_decoder_outputs", "is_encoder_decoder"}) {
    EXPECT_THAT(make_error(with(key, 1)), HasSubstr(std::string(key) + " is 1; it must be true or false"));
  }
}

TEST(T5Config, UnsupportedOptionsAreRefused) {
  EXPECT_THAT(make_error(with("is_encoder_decoder", false)), HasSubstr("is_encoder_decoder is false; it must be true"));
  EXPECT_THAT(make_error(with("is_decoder", true)), HasSubstr("is_decoder is true; it must be false"));
  EXPECT_THAT(make_error(with("quantization_config", {{"bits", 4}})), HasSubstr("quantization_config"));
  EXPECT_THAT(make_error(with("hidden_size", 12)), AllOf(HasSubstr("hidden_size is 12"), HasSubstr("d_model")));
  EXPECT_THAT(make_error(with("head_dim", 5)), HasSubstr("d_kv"));
}

}  // namespace
}  // namespace fsdp::models::t5_test
