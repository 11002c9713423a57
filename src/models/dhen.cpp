#include "models/dhen.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include "models/dhen_interactions.h"
#include "models/flops.h"

namespace fsdp::models {
namespace {

// Returns the first size, the hidden sizes and the last size.
std::vector<int64_t> chain(int64_t first, std::vector<int64_t> hidden, int64_t last) {
  hidden.insert(hidden.begin(), first);
  hidden.push_back(last);
  return hidden;
}

}  // namespace

EmbeddingMixImpl::EmbeddingMixImpl(int64_t inputs, int64_t outputs, const at::TensorOptions& options)
    : mix_(register_module("mix", Linear(inputs, outputs, false, options))) {}

at::Tensor EmbeddingMixImpl::forward(const at::Tensor& x) { return mix_(x.transpose(1, 2)).transpose(1, 2); }

MultilayerImpl::MultilayerImpl(std::vector<int64_t> sizes, const at::TensorOptions& options)
    : sizes_(std::move(sizes)), layers_(register_module("layers", torch::nn::ModuleList())) {
  for (size_t i = 0; i + 1 < sizes_.size(); ++i) layers_->push_back(Linear(sizes_[i], sizes_[i + 1], true, options));
}

at::Tensor MultilayerImpl::forward(at::Tensor x) {
  for (size_t i = 0; i < layers_->size(); ++i) {
    if (i > 0) x = at::relu(x);
    x = layers_->at<LinearImpl>(i).forward(x);
  }
  return x;
}

std::vector<Products> MultilayerImpl::products() const {
  double flops = 0;
  for (size_t i = 0; i + 1 < sizes_.size(); ++i) {
    flops += linear_flops(static_cast<double>(sizes_[i]) * static_cast<double>(sizes_[i + 1]), 1);
  }
  return {{linear_kind(/*with_bias=*/true), flops}};
}

DhenLayerImpl::DhenLayerImpl(const DhenConfig& config, int64_t inputs, const at::TensorOptions& options)
    : norm_(register_module("norm", LayerNorm(config.embedding_width, config.layer_norm_eps, options))) {
  for (const std::string& name : config.interactions) {
    interactions_.push_back(register_module(name, make_interaction(name, config, inputs, options)));
  }
  const int64_t outputs = config.layer_embeddings();
  if (inputs == outputs) return;
  shortcut_ = register_module("shortcut", EmbeddingMix(inputs, outputs, options));
  shortcut_flops_ = linear_flops(static_cast<double>(inputs * outputs), static_cast<double>(config.embedding_width));
}

at::Tensor DhenLayerImpl::forward(const at::Tensor& x) {
  std::vector<at::Tensor> ensemble;
  for (const auto& interaction : interactions_) ensemble.push_back(interaction->forward(x));
  const at::Tensor joined = at::cat(ensemble, 1);
  return norm_(joined + (shortcut_.is_empty() ? x : shortcut_(x)));
}

std::vector<Products> DhenLayerImpl::products() const {
  std::vector<Products> all{{EmbeddingMixImpl::kProduct, shortcut_flops_}};
  for (const auto& interaction : interactions_) {
    const std::vector<Products> more = interaction->products();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

DhenImpl::DhenImpl(const DhenConfig& config, const at::TensorOptions& options)
    : config_(config),
      numeric_(register_module(
          "numeric",
          Multilayer(chain(config.num_numeric_features, config.numeric_sizes, config.embedding_width), options))),
      layers_(register_module("layers", torch::nn::ModuleList())),
      head_(register_module(
          "head",
          Multilayer(chain(config.layer_embeddings() * config.embedding_width, config.head_sizes, 1), options))) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_->push_back(DhenLayer(config, i == 0 ? config.input_embeddings() : config.layer_embeddings(), options));
  }
}

DhenImpl::DhenImpl(const DhenConfig& config, std::shared_ptr<FeatureEmbedding> embedding,
                   const at::TensorOptions& options)
    : DhenImpl(config, options) {
  set_embedding(std::move(embedding));
}

void DhenImpl::check_inputs(const at::Tensor& numeric, const at::Tensor& categorical, const at::Tensor& labels) const {
  TORCH_CHECK(numeric.dim() == 2 && numeric.size(1) == config_.num_numeric_features && numeric.is_floating_point(),
              "DHEN: numeric features must be floating point of sizes [batch, ", config_.num_numeric_features,
              "]; got ", numeric.scalar_type(), " of sizes ", numeric.sizes());
  TORCH_CHECK(categorical.dim() == 2 && categorical.size(0) == numeric.size(0), "DHEN: there are categorical features ",
              "of sizes ", categorical.sizes(), " for ", numeric.size(0), " samples");
  TORCH_CHECK(!labels.defined() || (labels.dim() == 1 && labels.size(0) == numeric.size(0)),
              "DHEN: there are labels of sizes ", labels.sizes(), " for ", numeric.size(0), " samples");
}

TabularOutput DhenImpl::forward(const at::Tensor& numeric, const at::Tensor& categorical, const at::Tensor& labels) {
  check_inputs(numeric, categorical, labels);
  const at::Tensor of_numbers = numeric_(numeric).unsqueeze(1);
  at::Tensor x = at::cat({of_numbers, look_up(categorical).to(of_numbers.scalar_type())}, 1);
  for (size_t i = 0; i < layers_->size(); ++i) {
    x = checkpointing_.forward(static_cast<int64_t>(i), layers_->ptr<DhenLayerImpl>(i), x);
  }
  return with_binary_loss(head_(x.flatten(1)).squeeze(1), labels);
}

double DhenImpl::flops_per_sample() const {
  double flops = sum_of(numeric_->products()) + sum_of(head_->products());
  for (const auto& layer : *layers_) flops += sum_of(layer->as<DhenLayerImpl>()->products());
  return flops;
}

double DhenImpl::recomputed_flops_per_sample() const {
  double flops = 0;
  for (size_t i = 0; i < layers_->size(); ++i) {
    flops += recomputed_flops(checkpointing_, static_cast<int64_t>(i), layers_->ptr<DhenLayerImpl>(i)->products());
  }
  return flops;
}

void DhenImpl::initialize() {
  initialize_parameters(*numeric_, config_.initializer_range);
  initialize_parameters(*layers_, config_.initializer_range);
  initialize_parameters(*head_, config_.initializer_range);
}

int64_t DhenImpl::dense_parameters() const {
  int64_t numel = 0;
  for (const auto& parameter : named_parameters()) {
    if (parameter.key().rfind("embedding.", 0) != 0) numel += parameter.value().numel();
  }
  return numel;
}

}  // namespace fsdp::models
