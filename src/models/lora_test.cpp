// Adapters: outputs compared with merged weights, and trainable parameters.
#include "models/lora.h"

#include <nlohmann/json.hpp>

#include "models/causal_lm.h"
#include "models/layers.h"

namespace fsdp::models::lora_test {
namespace {

nlohmann::json tiny_config() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 29},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 32},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", true}};
}

TEST(Lora, AddsItsProductToTheWeight) {
  torch::manual_seed(3);
  Linear layer(6, 4, /*with_bias=*/true, torch::dtype(torch::kDouble));
  initialize_parameters(*layer, 0.5);
  layer->add_adapter(2, 0.25);
  initialize_lora(*layer);
  torch::Tensor x = torch::randn({3, 6}, torch::kDouble);
  EXPECT_TRUE(torch::equal(layer(x), torch::linear(x, layer->weight, layer->bias)));  // B is zero
  torch::NoGradGuard no_grad;
  layer->lora_b.normal_();
  torch::Tensor merged = layer->weight + 0.25 * layer->lora_b.mm(layer->lora_a);
  EXPECT_TRUE(torch::allclose(layer(x), torch::linear(x, merged, layer->bias), 1e-12, 1e-14));
  EXPECT_THROW(layer->add_adapter(2, 0.25), c10::Error);
}

TEST(Lora, FreezesEverythingElse) {
  auto model = make_causal_lm(tiny_config(), torch::kFloat, torch::kCPU);
  EXPECT_EQ(add_lora(*model, {.rank = 3}), 4);
  initialize_lora(*model);
  for (const auto& entry : model->named_parameters()) {
    EXPECT_EQ(entry.value().requires_grad(), entry.key().find("lora_") != std::string::npos) << entry.key();
  }
  auto names = model->named_parameters();
  EXPECT_EQ(names["model.layers.1.self_attn.v_proj.lora_B"].sizes(), (torch::IntArrayRef{8, 3}));
  model->forward(torch::arange(10).view({2, 5}), torch::arange(10).view({2, 5})).loss.backward();
  EXPECT_GT(names["model.layers.0.self_attn.q_proj.lora_B"].grad().abs().sum().item<double>(), 0);
}

TEST(Lora, NamesTargetsThatDoNotExist) {
  auto model = make_causal_lm(tiny_config(), torch::kFloat, torch::kMeta);
  try {
    add_lora(*model, {.targets = {"q_proj", "qkv"}});
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), ::testing::HasSubstr("\"qkv\""));
  }
}

}  // namespace
}  // namespace fsdp::models::lora_test
