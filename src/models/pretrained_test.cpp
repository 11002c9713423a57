#include "models/pretrained.h"

#include <torch/torch.h>

#include <cstring>
#include <limits>

#include "formats/hugging_face/hf_folder_writer.h"
#include "models/registry.h"
#include "models/testing/small_models.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::models::pretrained_test {
namespace {

using formats::HfFolder;
using formats::HfFolderWriter;
using formats::TensorInfo;
using nlohmann::json;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using ::testing::Not;
using testing::TemporaryFolder;

json config(bool tied) {
  return {{"model_type", "llama"},  {"vocab_size", 31},         {"hidden_size", 12},          {"intermediate_size", 20},
          {"num_hidden_layers", 1}, {"num_attention_heads", 3}, {"tie_word_embeddings", tied}};
}

// Saves a model's tensors, with `change` applied to the list of tensors.
void save(
    const PretrainedModel& model, const json& config, const std::filesystem::path& path,
    const std::function<void(std::vector<std::pair<std::string, at::Tensor>>&)>& change = [](auto&) {}) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const auto parameters = model.named_parameters(), buffers = model.named_buffers();
  for (const TensorInfo& info : checkpoint_tensors(model)) {
    tensors.emplace_back(info.name, parameters.contains(info.name) ? parameters[info.name] : buffers[info.name]);
  }
  change(tensors);
  std::vector<TensorInfo> layout;
  for (const auto& [name, tensor] : tensors) layout.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  HfFolderWriter writer(path, config, layout);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

TEST(Pretrained, FoldersOfEveryKindLoadWithTheirBuffers) {
  TemporaryFolder folder;
  for (const json& config : {small_gpt2(), small_mpt(), small_t5(), small_regnet(), small_deepvit()}) {
    const auto folder_of_it = folder / config["model_type"].get<std::string>();
    const auto model = make_uninitialized<PretrainedModel>(config, torch::kFloat32);
    model->initialize();
    for (const auto& buffer : model->buffers()) buffer.fill_(3);
    save(*model, config, folder_of_it);
    const auto loaded = load_pretrained<PretrainedModel>(HfFolder(folder_of_it), torch::kFloat64, torch::kCPU);
    const auto want = model->named_parameters(), want_buffers = model->named_buffers();
    for (const auto& parameter : loaded->named_parameters()) {
      EXPECT_TRUE(torch::equal(parameter.value(), want[parameter.key()].to(torch::kFloat64))) << parameter.key();
    }
    for (const auto& buffer : loaded->named_buffers()) {
      EXPECT_TRUE(buffer.value().eq(want_buffers[buffer.key()]).all().item<bool>()) << buffer.key();
    }
  }
}

TEST(Pretrained, FoldersOfAnotherKindAreRefused) {
  TemporaryFolder folder;
  save(*make_image_classifier(small_regnet(), torch::kFloat32, torch::kCPU), small_regnet(), folder / "m");
  const HfFolder images(folder / "m");
  EXPECT_THAT(error_of([&] { load_pretrained<CausalLM>(images, torch::kFloat32, torch::kCPU); }),
              HasSubstr("is an image classifier; expected a causal language model"));
  EXPECT_THAT(error_of([&] { load_pretrained<Seq2SeqLM>(images, torch::kFloat32, torch::kCPU); }),
              HasSubstr("is an image classifier; expected a sequence-to-sequence language model"));
}

TEST(Pretrained, SavedModelsComeBackBitEqual) {
  for (bool tied : {false, true}) {
    const TemporaryFolder folder;
    const auto model = make_causal_lm(config(tied), torch::kFloat32, torch::kCPU);
    save(*model, config(tied), folder / "m");
    EXPECT_EQ(HfFolder(folder / "m").find("lm_head.weight") == nullptr, tied);
    const auto loaded = load_pretrained<CausalLM>(HfFolder(folder / "m"), torch::kFloat32, torch::kCPU);
    const auto parameters = loaded->named_parameters();
    for (const auto& parameter : model->named_parameters()) {
      EXPECT_TRUE(torch::equal(parameter.value(), parameters[parameter.key()])) << parameter.key();
      EXPECT_TRUE(parameters[parameter.key()].requires_grad());
    }
    const auto ids = torch::randint(31, {1, 4});
    EXPECT_TRUE(torch::equal(loaded->forward(ids).logits, model->forward(ids).logits));
  }
}

// As in transformers, the head is tied to the embeddings of such a folder, or missing.
TEST(Pretrained, FoldersMayNameTheModelWithoutItsHead) {
  for (bool tied : {false, true}) {
    const TemporaryFolder folder;
    const json with_head = changed(small_gpt2(), {{"tie_word_embeddings", tied}});
    const json without = changed(with_head, {{"architectures", json::array({"GPT2Model"})}});
    const auto model = make_causal_lm(with_head, torch::kFloat32, torch::kCPU);
    save(*model, without, folder / "m", [](auto& tensors) {
      std::erase_if(tensors, [](const auto& tensor) { return tensor.first == "lm_head.weight"; });
      for (auto& [name, tensor] : tensors) name = name.substr(std::strlen("transformer."));
    });
    const auto load = [&] { return load_pretrained<CausalLM>(HfFolder(folder / "m"), torch::kFloat32, torch::kCPU); };
    if (!tied) {
      EXPECT_THAT(error_of(load), HasSubstr("missing tensor \"lm_head.weight\""));
      continue;
    }
    EXPECT_TRUE(torch::equal(load()->named_parameters()["lm_head.weight"],
                             model->named_parameters()["transformer.wte.weight"]));
    EXPECT_EQ(with_class_of_model(without).at("architectures"), json::array({"GPT2LMHeadModel"}));
  }
}

TEST(Pretrained, LoadingDrawsNoRandomNumbers) {
  const TemporaryFolder folder;
  save(*make_causal_lm(config(true), torch::kFloat32, torch::kCPU), config(true), folder / "m");
  torch::manual_seed(5);
  const auto expected = torch::rand({4});
  torch::manual_seed(5);
  load_pretrained<CausalLM>(HfFolder(folder / "m"), torch::kBFloat16, torch::kCPU);
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(Pretrained, CheckpointTensorsListASharedParameterOnce) {
  const auto model = make_causal_lm(config(true), torch::kFloat32, torch::kMeta);
  const auto tensors = checkpoint_tensors(*model, torch::kBFloat16);
  EXPECT_EQ(tensors.size(), model->named_parameters().size() - 1);
  EXPECT_EQ(tensors.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(tensors.front().dtype, torch::kBFloat16);
  EXPECT_EQ(tensors.front().shape, (std::vector<int64_t>{31, 12}));
  EXPECT_EQ(checkpoint_tensors(*model).front().dtype, torch::kFloat32);
}

TEST(Pretrained, FoldersThatDoNotFitAreRefused) {
  const auto model = make_causal_lm(config(false), torch::kFloat32, torch::kCPU);
  const auto error = [&](const std::function<void(std::vector<std::pair<std::string, at::Tensor>>&)>& change) {
    const TemporaryFolder folder;
    save(*model, config(false), folder / "m", change);
    return error_of([&] { PretrainedWeights(HfFolder(folder / "m"), *model); });
  };
  EXPECT_EQ(error([](auto&) {}), kNoError);
  EXPECT_THAT(error([](auto& tensors) { tensors.pop_back(); }), HasSubstr("missing tensor \"lm_head.weight\""));
  EXPECT_THAT(error([](auto& tensors) { tensors[0].second = torch::ones({31, 13}); }),
              AllOf(HasSubstr("\"model.embed_tokens.weight\" has shape [31, 13]"), HasSubstr("expected [31, 12]")));
  EXPECT_THAT(error([](auto& tensors) { tensors.emplace_back("lm_head.bias", torch::ones({31})); }),
              HasSubstr("extra tensor \"lm_head.bias\""));
  EXPECT_EQ(error([](auto& tensors) {
              tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", torch::ones({2}));
            }),
            kNoError);
}

TEST(Pretrained, AHeadBesideTiedEmbeddingsMustHoldTheSameValues) {
  const auto model = make_causal_lm(config(true), torch::kFloat32, torch::kCPU);
  const auto error = [&](const std::function<at::Tensor(const at::Tensor&)>& head_of) {
    const TemporaryFolder folder;
    save(*model, config(true), folder / "m",
         [&](auto& tensors) { tensors.emplace_back("lm_head.weight", head_of(tensors[0].second.detach())); });
    return error_of([&] { PretrainedWeights(HfFolder(folder / "m"), *model); });
  };
  const auto differ =
      AllOf(HasSubstr("lm_head.weight and model.embed_tokens.weight differ"), HasSubstr("tie_word_embeddings"));
  const auto same = [](const at::Tensor& embeddings) { return embeddings; };
  EXPECT_EQ(error(same), kNoError);
  EXPECT_THAT(error([](const at::Tensor& embeddings) { return embeddings + 1; }), differ);
  EXPECT_THAT(error([](const at::Tensor& embeddings) { return embeddings.to(torch::kBFloat16); }), differ);
  model->named_parameters()["model.embed_tokens.weight"].detach()[3][4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error(same), kNoError);
}

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

// Changes the names to those in the folders of OpenAI's GPT-2 weights, and adds the buffers of these folders.
void to_old_names(Tensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    if (name.starts_with("transformer.")) name = name.substr(std::strlen("transformer."));
  }
  for (const char* layer : {"h.0.attn", "h.1.attn"}) {
    tensors.emplace_back(std::string(layer) + ".bias", torch::ones({19, 19}).tril().view({1, 1, 19, 19}));
    tensors.emplace_back(std::string(layer) + ".masked_bias", torch::tensor(-1e4f));
  }
}

TEST(Pretrained, NamesMayLackThePrefixOfTheModelWithoutItsHead) {
  for (bool tied : {false, true}) {
    const TemporaryFolder folder;
    const json gpt2 = changed(small_gpt2(), {{"tie_word_embeddings", tied}});
    const auto model = make_causal_lm(gpt2, torch::kFloat32, torch::kCPU);
    save(*model, gpt2, folder / "m", to_old_names);
    const HfFolder opened(folder / "m");
    ASSERT_NE(opened.find("h.1.mlp.c_fc.weight"), nullptr);
    const auto loaded = load_pretrained<CausalLM>(opened, torch::kFloat32, torch::kCPU);
    const auto parameters = loaded->named_parameters();
    for (const auto& parameter : model->named_parameters()) {
      EXPECT_TRUE(torch::equal(parameter.value(), parameters[parameter.key()])) << parameter.key();
    }
    EXPECT_EQ(checkpoint_tensors(*loaded).front().name, "transformer.wte.weight");
  }
}

TEST(Pretrained, OldFoldersThatDoNotFitAreRefused) {
  const json gpt2 = changed(small_gpt2(), {{"tie_word_embeddings", true}});
  const auto model = make_causal_lm(gpt2, torch::kFloat32, torch::kCPU);
  const auto error = [&](const std::function<void(Tensors&)>& change) {
    const TemporaryFolder folder;
    save(*model, gpt2, folder / "m", [&](Tensors& tensors) {
      to_old_names(tensors);
      change(tensors);
    });
    return error_of([&] { PretrainedWeights(HfFolder(folder / "m"), *model); });
  };
  EXPECT_EQ(error([](Tensors&) {}), kNoError);
  EXPECT_THAT(error([](Tensors& tensors) { tensors.erase(tensors.begin()); }),
              HasSubstr("missing tensor \"transformer.wte.weight\""));
  EXPECT_THAT(error([](Tensors& tensors) { tensors[0].second = torch::ones({31, 13}); }),
              AllOf(HasSubstr("\"wte.weight\" has shape [31, 13]"), HasSubstr("expected [31, 12]")));
  EXPECT_THAT(error([](Tensors& tensors) { tensors.emplace_back("transformer.wte.weight", torch::ones({31, 12})); }),
              HasSubstr("extra tensor \"wte.weight\""));
  EXPECT_THAT(error([](Tensors& tensors) { tensors.emplace_back("h.0.attn.rotary_emb.inv_freq", torch::ones({2})); }),
              HasSubstr("extra tensor \"h.0.attn.rotary_emb.inv_freq\""));
  EXPECT_THAT(error([](Tensors& tensors) { tensors.emplace_back("lm_head.weight", torch::zeros({31, 12})); }),
              AllOf(HasSubstr("lm_head.weight and wte.weight differ"), HasSubstr("tie_word_embeddings")));
}

}  // namespace
}  // namespace fsdp::models::pretrained_test
