#include "fuzz_training/modules.h"

#include <algorithm>

#include "fsdp/activation_checkpoint.h"
#include "fuzz_training/layer_kinds.h"

namespace fsdp::fuzz {
namespace {

// Returns values that depend only on the name and the size, so that ranks and the reference start alike without random
// numbers.
torch::Tensor values_for(const std::string& name, const torch::Tensor& parameter) {
  double phase = 0;
  for (char c : name) phase = phase * 0.7 + c;
  torch::Tensor waves = torch::sin(torch::arange(parameter.numel(), at::kDouble) * 0.7 + phase).view(parameter.sizes());
  if (!parameter.is_floating_point()) return torch::arange(parameter.numel()).flip(0).view(parameter.sizes());
  const bool scales = name.find("norm") != std::string::npos || name.find("scale") != std::string::npos;
  return scales ? waves * 0.2 + 1 : waves * 0.4;
}

bool is_used(const std::string& uses, int64_t step) {
  return uses == "always" || (uses == "even_steps") == (step % 2 == 0);
}

void freeze(LayerImpl& layer) {
  for (auto& entry : layer.named_parameters()) {
    const bool bias = entry.key().find("bias") != std::string::npos || entry.key().find("shift") != std::string::npos;
    if (!entry.value().is_floating_point()) continue;
    if (layer.spec().frozen == "all" || (layer.spec().frozen == "bias" && bias)) entry.value().set_requires_grad(false);
  }
}

}  // namespace

torch::Tensor LayerImpl::apply(const torch::Tensor& x, const Call& call) {
  if (!spec_.checkpoint) return run(x, call);
  return activation_checkpoint([this, call](const torch::Tensor& given) { return run(given, call); }, x);
}

torch::Tensor LayerImpl::forward(const torch::Tensor& x, const Call& call) {
  if (!is_used(spec_.uses, call.step)) return x;
  torch::Tensor y = x;
  for (int64_t i = 0; i < spec_.repeat; ++i) y = apply(y, call);
  return torch::tanh(spec_.residual ? x + y : y);
}

SingleImpl::SingleImpl(const Layer& spec, Builder& builder)
    : LayerImpl(spec), function_(make_kind(*this, spec, builder)) {}

GroupImpl::GroupImpl(const Layer& spec, Builder& builder) : LayerImpl(spec) {
  for (const Layer& child : spec.children) {
    layers_.push_back(register_module(std::to_string(layers_.size()), builder.make(child)));
  }
}

torch::Tensor GroupImpl::run(const torch::Tensor& x, const Call& call) {
  torch::Tensor y = x;
  for (const auto& layer : layers_) y = layer->forward(y, call);
  return y;
}

std::shared_ptr<LayerImpl> Builder::make(const Layer& spec) {
  const size_t place = made_.size();
  made_.emplace_back();
  std::shared_ptr<LayerImpl> layer;
  if (spec.kind == "group") {
    layer = std::make_shared<GroupImpl>(spec, *this);
  } else {
    layer = std::make_shared<SingleImpl>(spec, *this);
  }
  made_[place] = layer;
  return layer;
}

NetImpl::NetImpl(const Model& model) {
  Builder builder(model.width);
  for (const Layer& spec : model.layers) {
    layers_.push_back(register_module("layer" + std::to_string(layers_.size()), builder.make(spec)));
  }
  all_layers_ = builder.made();
  if (model.gain) gain_ = register_parameter("gain", torch::empty({model.width}));
  torch::NoGradGuard no_grad;
  for (auto& entry : named_parameters()) entry.value().copy_(values_for(entry.key(), entry.value()));
  for (const auto& layer : all_layers_) freeze(*layer);
}

torch::Tensor NetImpl::forward(torch::Tensor x, const Call& call) {
  for (const auto& layer : layers_) x = layer->forward(x, call);
  return gain_.defined() ? x * gain_ : x;
}

std::vector<std::pair<std::string, torch::Tensor>> sharded_parameters_of(const NetImpl& net) {
  std::vector<torch::Tensor> passed;  // parameters that are ignored or already listed
  for (const auto& layer : net.all_layers()) {
    if (!layer->spec().ignored) continue;
    for (const auto& parameter : layer->parameters()) passed.push_back(parameter);
  }
  std::vector<std::pair<std::string, torch::Tensor>> result;
  for (const auto& entry : net.named_parameters()) {
    const auto same = [&](const torch::Tensor& other) { return other.is_same(entry.value()); };
    if (std::any_of(passed.begin(), passed.end(), same)) continue;
    passed.push_back(entry.value());
    result.emplace_back(entry.key(), entry.value());
  }
  return result;
}

std::vector<torch::Tensor> trainable_parameters_of(const NetImpl& net) {
  std::vector<torch::Tensor> result;
  for (const auto& [name, parameter] : sharded_parameters_of(net)) {
    if (parameter.requires_grad()) result.push_back(parameter);
  }
  return result;
}

}  // namespace fsdp::fuzz
