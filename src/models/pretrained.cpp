#include "models/pretrained.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <unordered_map>

#include "models/registry.h"

namespace fsdp::models {
namespace {

using checkpoint::HfFolder;
using checkpoint::TensorInfo;

// Further names of shared parameters, with the first name of each.
std::unordered_map<std::string, std::string> alias_names(const torch::nn::Module& model) {
  std::unordered_map<const at::TensorImpl*, std::string> first_names;
  std::unordered_map<std::string, std::string> aliases;
  for (const auto& parameter : model.named_parameters()) {
    const auto [known, is_new] = first_names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
    if (!is_new) {
      aliases.emplace(parameter.key(), known->second);
    }
  }
  return aliases;
}

bool is_rope_buffer(std::string_view name) {
  constexpr std::string_view kBuffer = "rotary_emb.inv_freq";
  return name.size() >= kBuffer.size() && name.substr(name.size() - kBuffer.size()) == kBuffer;
}

void check_aliases(const HfFolder& folder, const std::unordered_map<std::string, std::string>& aliases) {
  for (const auto& [alias, name] : aliases) {
    const TensorInfo* stored = folder.find(alias);
    TORCH_CHECK(stored == nullptr || at::equal(folder.tensor(alias), folder.tensor(name)), folder.path().string(),
                ": tensors ", alias, " and ", name, " differ, but config.json ties them; with untied weights it must ",
                "set tie_word_embeddings to false");
  }
}

}  // namespace

std::vector<TensorInfo> checkpoint_tensors(const torch::nn::Module& model, std::optional<c10::ScalarType> dtype) {
  const auto aliases = alias_names(model);
  std::vector<TensorInfo> tensors;
  for (const auto& parameter : model.named_parameters()) {
    if (aliases.count(parameter.key()) == 0) {
      const at::Tensor& value = parameter.value();
      tensors.push_back({parameter.key(), dtype.value_or(value.scalar_type()), value.sizes().vec()});
    }
  }
  return tensors;
}

void check_pretrained(const HfFolder& folder, const torch::nn::Module& model) {
  const auto aliases = alias_names(model);
  folder.check_tensors(checkpoint_tensors(model),
                       [&](const std::string& name) { return is_rope_buffer(name) || aliases.count(name) != 0; });
  check_aliases(folder, aliases);
}

std::shared_ptr<CausalLM> load_causal_lm(const HfFolder& folder, c10::ScalarType dtype, c10::Device device) {
  auto model = make_uninitialized_causal_lm(folder.config(), at::TensorOptions().dtype(dtype).device(device));
  check_pretrained(folder, *model);
  const at::NoGradGuard no_grad;
  const auto aliases = alias_names(*model);
  for (const auto& parameter : model->named_parameters()) {
    if (aliases.count(parameter.key()) == 0) {
      const at::Tensor& value = parameter.value();
      folder.read_range(parameter.key(), 0, value.numel(), value.view(-1));
    }
  }
  return model;
}

}  // namespace fsdp::models
