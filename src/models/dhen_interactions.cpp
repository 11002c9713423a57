#include "models/dhen_interactions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/triu_indices.h>
#include <c10/util/Exception.h>

#include "models/attention.h"
#include "models/flops.h"

namespace fsdp::models {
namespace {

double product(int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

class AttentionInteraction final : public Interaction {
 public:
  AttentionInteraction(const DhenConfig& config, int64_t inputs, const at::TensorOptions& options)
      : inputs_(inputs),
        width_(config.embedding_width),
        outputs_(config.interaction_outputs),
        head_dim_(width_ / config.num_attention_heads),
        qkv_(register_module("qkv", Linear(width_, 3 * width_, true, options))),
        proj_(register_module("proj", Linear(width_, width_, true, options))),
        mix_(register_module("mix", EmbeddingMix(inputs, outputs_, options))) {}

  at::Tensor forward(const at::Tensor& x) override {
    const auto parts = qkv_(x).chunk(3, /*dim=*/-1);
    const at::Tensor query = split_heads(parts[0], head_dim_);
    const at::Tensor key = split_heads(parts[1], head_dim_);
    const at::Tensor value = split_heads(parts[2], head_dim_);
    const at::Tensor attended = at::scaled_dot_product_attention(query, key, value);
    return mix_(proj_(attended.transpose(1, 2).flatten(2)));
  }
  std::vector<Products> products() const override {
    const auto inputs = static_cast<double>(inputs_), width = static_cast<double>(width_);
    return {{ProductKind::kAddmm, linear_flops(4 * width * width, inputs)},
            {ProductKind::kSdpa, attention_flops(width, inputs, inputs)},
            {EmbeddingMixImpl::kProduct, linear_flops(product(inputs_, outputs_), width)}};
  }

 private:
  int64_t inputs_, width_, outputs_, head_dim_;
  Linear qkv_, proj_;
  EmbeddingMix mix_;
};

class CrossInteraction final : public Interaction {
 public:
  CrossInteraction(const DhenConfig& config, int64_t inputs, const at::TensorOptions& options)
      : inputs_(inputs),
        width_(config.embedding_width),
        outputs_(config.interaction_outputs),
        rank_(config.cross_rank),
        down_(register_module("down", Linear(inputs * width_, rank_, false, options))),
        up_(register_module("up", Linear(rank_, inputs * width_, true, options))),
        mix_(register_module("mix", EmbeddingMix(inputs, outputs_, options))) {}

  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor flat = x.flatten(1);
    return mix_((flat * up_(down_(flat)) + flat).view_as(x));
  }
  std::vector<Products> products() const override {
    const double low_rank = linear_flops(product(inputs_ * width_, rank_), 1);
    return {{ProductKind::kMm, low_rank},
            {ProductKind::kAddmm, low_rank},
            {EmbeddingMixImpl::kProduct, linear_flops(product(inputs_, outputs_), static_cast<double>(width_))}};
  }

 private:
  int64_t inputs_, width_, outputs_, rank_;
  Linear down_, up_;
  EmbeddingMix mix_;
};

class DotProductInteraction final : public Interaction {
 public:
  DotProductInteraction(const DhenConfig& config, int64_t inputs, const at::TensorOptions& options)
      : inputs_(inputs),
        width_(config.embedding_width),
        outputs_(config.interaction_outputs),
        linear_(register_module("linear", Linear(pairs(), outputs_ * width_, true, options))) {}

  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor products = at::matmul(x, x.transpose(1, 2));
    const at::Tensor places = at::triu_indices(inputs_, inputs_, /*offset=*/1, x.options().dtype(at::kLong));
    const at::Tensor flat = places[0] * inputs_ + places[1];
    return linear_(products.flatten(1).index_select(1, flat)).view({x.size(0), outputs_, width_});
  }
  std::vector<Products> products() const override {
    return {{ProductKind::kBmm, 6 * product(inputs_ * inputs_, width_)},
            {ProductKind::kAddmm, linear_flops(product(pairs(), outputs_ * width_), 1)}};
  }

 private:
  int64_t pairs() const { return inputs_ * (inputs_ - 1) / 2; }

  int64_t inputs_, width_, outputs_;
  Linear linear_;
};

class LinearInteraction final : public Interaction {
 public:
  LinearInteraction(const DhenConfig& config, int64_t inputs, const at::TensorOptions& options)
      : mix_(register_module("mix", EmbeddingMix(inputs, config.interaction_outputs, options))),
        flops_(linear_flops(product(inputs, config.interaction_outputs), static_cast<double>(config.embedding_width))) {
  }
  at::Tensor forward(const at::Tensor& x) override { return mix_(x); }
  std::vector<Products> products() const override { return {{EmbeddingMixImpl::kProduct, flops_}}; }

 private:
  EmbeddingMix mix_;
  double flops_;
};

class MlpInteraction final : public Interaction {
 public:
  MlpInteraction(const DhenConfig& config, int64_t inputs, const at::TensorOptions& options)
      : width_(config.embedding_width), outputs_(config.interaction_outputs) {
    const std::vector<int64_t> sizes{inputs * width_, config.mlp_size, outputs_ * width_};
    layers_ = register_module("layers", Multilayer(sizes, options));
  }
  at::Tensor forward(const at::Tensor& x) override { return layers_(x.flatten(1)).view({x.size(0), outputs_, width_}); }
  std::vector<Products> products() const override { return layers_->products(); }

 private:
  int64_t width_, outputs_;
  Multilayer layers_{nullptr};
};

}  // namespace

std::shared_ptr<Interaction> make_interaction(const std::string& name, const DhenConfig& config, int64_t inputs,
                                              const at::TensorOptions& options) {
  if (name == "attention") return std::make_shared<AttentionInteraction>(config, inputs, options);
  if (name == "cross") return std::make_shared<CrossInteraction>(config, inputs, options);
  if (name == "dot_product") return std::make_shared<DotProductInteraction>(config, inputs, options);
  if (name == "linear") return std::make_shared<LinearInteraction>(config, inputs, options);
  if (name == "mlp") return std::make_shared<MlpInteraction>(config, inputs, options);
  TORCH_CHECK(false, "DHEN: there is no interaction \"", name, "\"");
}

}  // namespace fsdp::models
