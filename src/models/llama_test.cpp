#include "models/llama.h"

#include <torch/torch.h>

#include <set>

#include "checkpoint/checkpoint_test_support.h"
#include "models/causal_lm.h"
#include "models/layers.h"
#include "torch_seams/operator_interception.h"

namespace fsdp::models {
namespace {

using checkpoint::error_of;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json small_config() {
  return {{"model_type", "llama"},    {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 31},         {"hidden_size", 12},
          {"intermediate_size", 20},  {"num_hidden_layers", 2},
          {"num_attention_heads", 6}, {"num_key_value_heads", 2}};
}

json with(const char* key, const json& value) {
  json config = small_config();
  config[key] = value;
  return config;
}

std::string make_error(const json& config) {
  return error_of([&] { make_causal_lm(config, torch::kFloat32, torch::kMeta); });
}

std::string without_error(const char* key) {
  json config = small_config();
  config.erase(key);
  return make_error(config);
}

TEST(Llama, FqnsAreThoseOfHuggingFace) {
  json config = with("attention_bias", true);
  config["num_hidden_layers"] = 1;
  config["mlp_bias"] = true;
  const auto model = make_causal_lm(config, torch::kFloat32, torch::kMeta);
  EXPECT_THAT(model->named_parameters().keys(),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.k_proj.weight",
                          "model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.v_proj.weight",
                          "model.layers.0.self_attn.v_proj.bias", "model.layers.0.self_attn.o_proj.weight",
                          "model.layers.0.self_attn.o_proj.bias", "model.layers.0.mlp.gate_proj.weight",
                          "model.layers.0.mlp.gate_proj.bias", "model.layers.0.mlp.up_proj.weight",
                          "model.layers.0.mlp.up_proj.bias", "model.layers.0.mlp.down_proj.weight",
                          "model.layers.0.mlp.down_proj.bias", "model.layers.0.input_layernorm.weight",
                          "model.layers.0.post_attention_layernorm.weight", "model.norm.weight", "lm_head.weight"));
  EXPECT_EQ(model->buffers().size(), 0u);
}

TEST(Llama, BlocksHaveTheClassNameThatPoliciesAskFor) {
  const auto model = make_causal_lm(small_config(), torch::kFloat32, torch::kMeta);
  EXPECT_THAT(model->block_class_names(), ElementsAre("LlamaDecoderLayer"));
  EXPECT_EQ(model->named_modules()["model.layers.0"]->name(), "fsdp::models::LlamaDecoderLayerImpl");
}

TEST(Llama, ATiedHeadIsTheEmbeddingItself) {
  const auto model = make_causal_lm(with("tie_word_embeddings", true), torch::kFloat32, torch::kMeta);
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["lm_head.weight"].unsafeGetTensorImpl(),
            parameters["model.embed_tokens.weight"].unsafeGetTensorImpl());
}

TEST(Llama, MetaConstructionDrawsNoRandomNumbers) {
  torch::manual_seed(5);
  const auto expected = torch::rand({4});
  torch::manual_seed(5);
  const auto model = make_causal_lm(small_config(), torch::kFloat32, torch::kMeta);
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
  for (const auto& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.is_meta());
    EXPECT_TRUE(parameter.requires_grad());
  }
}

TEST(Llama, InitialisationFollowsTheSeed) {
  json config = with("attention_bias", true);
  config["hidden_size"] = 120;
  config["initializer_range"] = 0.3;
  config["pad_token_id"] = 4;
  torch::manual_seed(7);
  const auto model = make_causal_lm(config, torch::kFloat64, torch::kCPU);
  torch::manual_seed(7);
  const auto again = make_causal_lm(config, torch::kFloat64, torch::kCPU);
  const auto other = make_causal_lm(config, torch::kFloat64, torch::kCPU);
  const auto parameters = model->named_parameters();
  for (const auto& parameter : parameters) {
    EXPECT_TRUE(torch::equal(parameter.value(), again->named_parameters()[parameter.key()])) << parameter.key();
  }
  const auto weight = parameters["model.layers.1.mlp.up_proj.weight"];
  EXPECT_FALSE(torch::equal(weight, other->named_parameters()["model.layers.1.mlp.up_proj.weight"]));
  EXPECT_NEAR(weight.std().item<double>(), 0.3, 0.03);
  EXPECT_NEAR(weight.mean().item<double>(), 0.0, 0.03);
  EXPECT_TRUE(parameters["model.norm.weight"].eq(1).all().item<bool>());
  EXPECT_TRUE(parameters["model.layers.0.self_attn.q_proj.bias"].eq(0).all().item<bool>());
  EXPECT_TRUE(parameters["model.embed_tokens.weight"][4].eq(0).all().item<bool>());
  EXPECT_TRUE(parameters["model.embed_tokens.weight"][5].ne(0).all().item<bool>());
}

std::vector<torch::Tensor> loss_and_gradients(CausalLM& model) {
  torch::manual_seed(9);
  model.zero_grad();
  const auto ids = (torch::arange(10) * 7 % 31).view({2, 5});
  const auto loss = model.forward(ids, ids).loss;
  loss.backward();
  std::vector<torch::Tensor> result = {loss.detach()};
  for (const auto& parameter : model.parameters()) {
    result.push_back(parameter.grad().clone());
  }
  return result;
}

class BlockCalls : public seams::OperatorInterceptor {
 public:
  BlockCalls() : guard_(*this) {}
  void intercept(const c10::OperatorHandle& op, torch::jit::Stack&, c10::function_ref<void()> run) override {
    count += op.schema().name() == "aten::silu";  // once in each block's forward
    run();
  }
  int count = 0;

 private:
  seams::InterceptionGuard guard_;
};

TEST(Llama, ActivationCheckpointingChangesNoNumber) {
  json config = with("attention_dropout", 0.3);
  config["num_hidden_layers"] = 3;
  config["tie_word_embeddings"] = true;
  const auto model = make_causal_lm(config, torch::kFloat32, torch::kCPU);
  model->train();
  initialize_parameters(*model, 0.3);
  const auto want = loss_and_gradients(*model);
  const auto names = model->named_parameters().keys();
  for (const auto& [policy, recomputed] : {std::pair{CheckpointPolicy::full(), 3},
                                           {CheckpointPolicy::every(2), 2},
                                           {CheckpointPolicy::selected_operators({"aten::mm", "aten::silu"}), 0},
                                           {CheckpointPolicy(), 0}}) {
    model->set_activation_checkpointing(policy);
    BlockCalls silu;
    const auto got = loss_and_gradients(*model);
    EXPECT_EQ(silu.count, 3 + recomputed);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
    }
    EXPECT_EQ(model->named_parameters().keys(), names);
  }
}

TEST(Llama, DtypesOfLossAndLogits) {
  const auto ids = torch::randint(31, {2, 5});
  for (auto [dtype, loss] : {std::pair{torch::kFloat32, torch::kFloat32},
                             {torch::kBFloat16, torch::kFloat32},
                             {torch::kFloat64, torch::kFloat64}}) {
    const auto output = make_causal_lm(small_config(), dtype, torch::kCPU)->forward(ids, ids);
    EXPECT_EQ(output.logits.scalar_type(), dtype);
    EXPECT_EQ(output.loss.scalar_type(), loss);
    EXPECT_EQ(output.logits.sizes(), (std::vector<int64_t>{2, 5, 31}));
  }
}

// Against the definition, position by position.
TEST(Llama, LossIsTheMeanOverPredictedTokens) {
  torch::manual_seed(1);
  const auto model = make_causal_lm(with("initializer_range", 0.5), torch::kFloat64, torch::kCPU);
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

TEST(Llama, TheFutureDoesNotMatter) {
  torch::manual_seed(2);
  const auto model = make_causal_lm(with("initializer_range", 0.5), torch::kFloat64, torch::kCPU);
  const auto ids = torch::randint(31, {1, 9});
  auto changed = ids.clone();
  changed[0][6] = (changed[0][6] + 1) % 31;
  const auto before = model->forward(ids).logits, after = model->forward(changed).logits;
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 6), after.narrow(1, 0, 6), 0, 1e-12));
  EXPECT_FALSE(torch::allclose(before.narrow(1, 6, 3), after.narrow(1, 6, 3), 0, 1e-3));
}

TEST(Llama, AttentionDropoutIsAppliedInTrainingOnly) {
  torch::manual_seed(3);
  json config = with("attention_dropout", 0.5);
  config["initializer_range"] = 0.5;
  const auto model = make_causal_lm(config, torch::kFloat64, torch::kCPU);
  const auto ids = torch::randint(31, {1, 9});
  EXPECT_FALSE(torch::equal(model->forward(ids).logits, model->forward(ids).logits));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(ids).logits, model->forward(ids).logits));
}

TEST(Llama, ShapesAreChecked) {
  const auto model = make_causal_lm(small_config(), torch::kFloat32, torch::kCPU);
  const auto ids = torch::zeros({2, 5}, torch::kInt64);
  EXPECT_THAT(error_of([&] { model->forward(ids.view(-1)); }), HasSubstr("[10]"));
  EXPECT_THAT(error_of([&] { model->forward(ids, ids.narrow(1, 0, 4)); }), HasSubstr("[2, 4]"));
}

TEST(Llama, FlopsPerToken) {
  // Counted by hand: q 12x12, k and v 12x4, o 12x12; gate, up, down 12x20; head 12x31; sdpa 2 layers x 12 x
  // S.
  const double weights = 2 * (144 + 48 + 48 + 144 + 3 * 240) + 372;
  const auto model = make_causal_lm(small_config(), torch::kFloat32, torch::kMeta);
  EXPECT_EQ(model->flops_per_token(7), 6 * weights + 12 * 2 * 12 * 7);
  // A tied head does the same work.
  EXPECT_EQ(make_causal_lm(with("tie_word_embeddings", true), torch::kFloat32, torch::kMeta)->flops_per_token(7),
            model->flops_per_token(7));
  EXPECT_EQ(model->vocab_size(), 31);
  EXPECT_EQ(model->max_sequence_length(), 2048);
}

TEST(LlamaConfig, UnknownArchitectures) {
  EXPECT_THAT(make_error(with("model_type", "gpt2")),
              AllOf(HasSubstr("model_type is \"gpt2\""), HasSubstr("one of: llama")));
  EXPECT_THAT(make_error(with("architectures", {"LlamaModel"})),
              AllOf(HasSubstr("architectures is [\"LlamaModel\"]"), HasSubstr("LlamaForCausalLM")));
  EXPECT_THAT(make_error(with("architectures", "LlamaForCausalLM")), HasSubstr("must be an array"));
  EXPECT_THAT(make_error(json::object()), HasSubstr("model_type is missing"));
  EXPECT_THAT(make_error(json::array()), HasSubstr("expected a JSON object"));
  EXPECT_EQ(without_error("architectures"), "");
  EXPECT_EQ(without_error("model_type"), "");
}

TEST(LlamaConfig, MissingKeys) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    EXPECT_THAT(without_error(key), AllOf(HasSubstr(std::string(key) + " is missing"), HasSubstr("integer")));
  }
  EXPECT_EQ(without_error("num_key_value_heads"), "");
}

TEST(LlamaConfig, WrongTypesAndValues) {
  EXPECT_THAT(make_error(with("vocab_size", "31")), HasSubstr("vocab_size is \"31\"; it must be an integer"));
  EXPECT_THAT(make_error(with("vocab_size", 31.5)), HasSubstr("vocab_size is 31.5"));
  EXPECT_THAT(make_error(with("vocab_size", 0)), HasSubstr("vocab_size is 0"));
  EXPECT_THAT(make_error(with("vocab_size", uint64_t{1} << 63)), HasSubstr("vocab_size is 9223372036854775808"));
  EXPECT_THAT(make_error(with("num_hidden_layers", -1)), HasSubstr("num_hidden_layers is -1"));
  EXPECT_THAT(make_error(with("attention_bias", 1)), HasSubstr("attention_bias is 1; it must be true or false"));
  EXPECT_THAT(make_error(with("rms_norm_eps", "1e-6")), HasSubstr("rms_norm_eps is \"1e-6\"; it must be a number"));
  EXPECT_THAT(make_error(with("rms_norm_eps", -1)), HasSubstr("rms_norm_eps is -1"));
  EXPECT_THAT(make_error(with("hidden_act", "softmax")),
              AllOf(HasSubstr("\"softmax\""), HasSubstr("silu, swish, gelu")));
  EXPECT_THAT(make_error(with("pad_token_id", 31)), HasSubstr("pad_token_id is 31"));
  EXPECT_THAT(make_error(with("pad_token_id", UINT64_MAX)), HasSubstr("pad_token_id is 18446744073709551615"));
  EXPECT_THAT(make_error(with("quantization_config", {{"bits", 4}})), HasSubstr("quantization_config"));
}

TEST(LlamaConfig, HeadsThatDoNotDivide) {
  EXPECT_THAT(make_error(with("num_attention_heads", 5)),
              AllOf(HasSubstr("num_attention_heads is 5"), HasSubstr("divisor of hidden_size, 12")));
  EXPECT_THAT(make_error(with("num_key_value_heads", 4)),
              AllOf(HasSubstr("num_key_value_heads is 4"), HasSubstr("divisor of num_attention_heads, 6")));
  EXPECT_THAT(make_error(with("head_dim", 7)), AllOf(HasSubstr("head_dim is 7"), HasSubstr("even")));
  EXPECT_THAT(make_error(with("num_attention_heads", 12)),
              AllOf(HasSubstr("num_attention_heads is 12"), HasSubstr("a head, 1, is even")));
}

TEST(LlamaConfig, IntegerDtypesAreRefused) {
  EXPECT_THAT(error_of([] { make_causal_lm(small_config(), torch::kInt32, torch::kCPU); }), HasSubstr("Int"));
}

}  // namespace
}  // namespace fsdp::models
