#include "models/pretrained.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "models/registry.h"

namespace fsdp::models {
namespace {

using formats::FolderPart;
using formats::HfFolder;
using formats::TensorInfo;

// Returns the further names of shared parameters, each with the first name of its parameter.
std::unordered_map<std::string, std::string> alias_names(const torch::nn::Module& model) {
  std::unordered_map<const at::TensorImpl*, std::string> first_names;
  std::unordered_map<std::string, std::string> aliases;
  for (const auto& parameter : model.named_parameters()) {
    const auto [known, is_new] = first_names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
    if (!is_new) aliases.emplace(parameter.key(), known->second);
  }
  return aliases;
}

// Returns every name of every parameter, and of every buffer.
std::vector<std::string> all_names(const torch::nn::Module& model) {
  std::vector<std::string> names = model.named_parameters().keys();
  for (const std::string& buffer : model.named_buffers().keys()) names.push_back(buffer);
  return names;
}

// Whether both are bitwise equal. A NaN equals itself.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(a.reshape(-1).view(at::kByte), b.reshape(-1).view(at::kByte));
}

bool ends_with_any(std::string_view name, const std::vector<std::string>& ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return name.ends_with(end); });
}

bool starts_with_any(std::string_view name, const std::vector<std::string>& starts) {
  return std::any_of(starts.begin(), starts.end(), [&](const std::string& start) { return name.starts_with(start); });
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
  for (const auto& buffer : model.named_buffers()) {
    const c10::ScalarType own = buffer.value().scalar_type();
    tensors.push_back(
        {buffer.key(), c10::isFloatingType(own) ? dtype.value_or(own) : own, buffer.value().sizes().vec()});
  }
  return tensors;
}

PretrainedWeights::PretrainedWeights(HfFolder folder, const PretrainedModel& model) : folder_(std::move(folder)) {
  find_stored_names(model);
  check_tensors(model);
  check_aliases(model);
}

void PretrainedWeights::find_stored_names(const PretrainedModel& model) {
  const auto aliases = alias_names(model);
  const FolderNames names = model.folder_names();
  const std::string prefix = names.base_model + ".";
  std::unordered_map<std::string, TensorInfo> infos;
  for (TensorInfo& info : checkpoint_tensors(model)) infos.emplace(info.name, std::move(info));
  for (const std::string& name : all_names(model)) {
    const auto alias = aliases.find(name);
    const std::string& fqn = alias == aliases.end() ? name : alias->second;
    const TensorInfo& info = infos.at(fqn);
    if (find_stored(fqn, fqn, info) || find_stored(fqn, name, info)) continue;
    if (name.starts_with(prefix) && find_stored(fqn, name.substr(prefix.size()), info)) continue;
    for (const auto& [of_model, of_folder] : names.renamed_prefixes) {
      if (name.starts_with(of_model) && find_stored(fqn, of_folder + name.substr(of_model.size()), info)) break;
    }
  }
}

bool PretrainedWeights::find_stored(const std::string& fqn, const std::string& name, const TensorInfo& info) {
  std::vector<FolderPart> parts = formats::folder_parts(folder_.config(), {name, info.dtype, info.shape});
  if (folder_.find(name) != nullptr) {
    if (name != fqn) stored_names_.emplace(fqn, name);
    if (!parts.empty()) expert_tensors_ = formats::ExpertTensors::kFused;
    return true;
  }
  const auto is_found = [&](const FolderPart& part) { return folder_.find(part.info.name) != nullptr; };
  if (std::none_of(parts.begin(), parts.end(), is_found)) return false;
  stored_parts_.emplace(fqn, std::move(parts));
  return true;
}

void PretrainedWeights::check_tensors(const PretrainedModel& model) const {
  std::vector<TensorInfo> expected;
  for (const TensorInfo& info : checkpoint_tensors(model)) {
    const auto parts = stored_parts_.find(info.name);
    if (parts == stored_parts_.end()) {
      expected.push_back({stored_name(info.name), info.dtype, info.shape});
    } else {
      for (const FolderPart& part : parts->second) expected.push_back(part.info);
    }
  }
  const auto aliases = alias_names(model);
  const FolderNames names = model.folder_names();
  folder_.check_tensors(expected, [&](const std::string& name) {
    return aliases.count(name) != 0 || ends_with_any("." + name, names.ignored) ||
           starts_with_any(name, names.other_parts);
  });
}

void PretrainedWeights::check_aliases(const torch::nn::Module& model) const {
  for (const auto& [alias, fqn] : alias_names(model)) {
    const std::string& name = stored_name(fqn);
    FSDP_CHECK_WITH(FileError, folder_.find(alias) == nullptr || same_bits(folder_.tensor(alias), folder_.tensor(name)),
                    folder_.path().string(), ": tensors ", alias, " and ", name,
                    " differ, but config.json ties them; with ",
                    "untied weights it must set tie_word_embeddings to false");
  }
}

const std::string& PretrainedWeights::stored_name(const std::string& fqn) const {
  const auto found = stored_names_.find(fqn);
  return found == stored_names_.end() ? fqn : found->second;
}

void PretrainedWeights::read_range(const std::string& fqn, int64_t begin, int64_t end, at::Tensor out) const {
  const auto parts = stored_parts_.find(fqn);
  if (parts == stored_parts_.end()) {
    folder_.read_range(stored_name(fqn), begin, end, std::move(out));
    return;
  }
  formats::for_each_part(parts->second, begin, end, [&](const FolderPart& part, int64_t from, int64_t to) {
    folder_.read_range(part.info.name, from, to, out.narrow(0, part.begin + from - begin, to - from));
  });
}

template <typename Model>
std::shared_ptr<Model> load_pretrained(const HfFolder& folder, c10::ScalarType dtype, c10::Device device) {
  auto model = make_uninitialized<Model>(folder.config(), at::TensorOptions().dtype(dtype).device(device));
  const PretrainedWeights weights(folder, *model);
  const at::NoGradGuard no_grad;
  const auto parameters = model->named_parameters(), buffers = model->named_buffers();
  for (const TensorInfo& info : checkpoint_tensors(*model)) {
    const at::Tensor* parameter = parameters.find(info.name);
    const at::Tensor& value = parameter != nullptr ? *parameter : buffers[info.name];
    weights.read_range(info.name, 0, value.numel(), value.view(-1));
  }
  return model;
}

template std::shared_ptr<CausalLM> load_pretrained(const HfFolder&, c10::ScalarType, c10::Device);
template std::shared_ptr<Seq2SeqLM> load_pretrained(const HfFolder&, c10::ScalarType, c10::Device);
template std::shared_ptr<ImageClassifier> load_pretrained(const HfFolder&, c10::ScalarType, c10::Device);
template std::shared_ptr<TabularModel> load_pretrained(const HfFolder&, c10::ScalarType, c10::Device);
template std::shared_ptr<PretrainedModel> load_pretrained(const HfFolder&, c10::ScalarType, c10::Device);

}  // namespace fsdp::models
