// A language model of your own, written like the models in src/models/: built from a config, without memory, and
// trained in shards:
//   torchrun --no-python --nproc-per-node 2 build/own_model
// docs/models.md explains the class. One line in src/models/registry.cpp makes it known to `fsdp train`.
#include <cmath>
#include <nlohmann/json.hpp>

#include "example.h"
#include "fsdp/deferred_init.h"
#include "models/causal_lm.h"
#include "models/config_reader.h"
#include "models/flops.h"
#include "models/layers.h"
#include "models/recomputed_flops.h"

// [model]
namespace fsdp::models {

struct AverageConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0;
};

inline AverageConfig parse_average_config(const nlohmann::json& json) {
  const ConfigReader config(json, "config.json");
  return {config.positive_integer("vocab_size"), config.positive_integer("hidden_size"),
          config.positive_integer("num_hidden_layers", 2)};
}

// Each position sees the mean of the positions up to and including itself.
class AverageBlockImpl : public torch::nn::Module {
 public:
  AverageBlockImpl(int64_t width, const at::TensorOptions& options)
      : norm_(register_module("norm", LayerNorm(width, 1e-5, options))),
        mix_(register_module("mix", Linear(2 * width, width, /*with_bias=*/true, options))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm_(x);
    const at::Tensor count = at::arange(1, x.size(1) + 1, x.options()).unsqueeze(1);
    return x + at::gelu(mix_(at::cat({y, y.cumsum(1) / count}, -1)));
  }

 private:
  LayerNorm norm_;
  Linear mix_;
};
TORCH_MODULE(AverageBlock);

class AverageLMImpl : public CausalLM {
 public:
  AverageLMImpl(const AverageConfig& config, const at::TensorOptions& options)
      : config_(config),
        embed_(register_module("embed", Embedding(config.vocab_size, config.hidden_size, std::nullopt, options))),
        head_(register_module("head", Linear(config.hidden_size, config.vocab_size, /*with_bias=*/false, options))) {
    for (int64_t i = 0; i < config.num_hidden_layers; ++i)
      blocks_->push_back(AverageBlock(config.hidden_size, options));
    register_module("blocks", blocks_);
  }

  LanguageModelOutput forward(const at::Tensor& input_ids, const at::Tensor& labels) override {
    check_tokens("AverageLM", input_ids, labels);
    at::Tensor x = embed_(input_ids);
    for (size_t i = 0; i < blocks_->size(); ++i) x = checkpointing_.forward(i, blocks_->ptr<AverageBlockImpl>(i), x);
    return predict(head_, x, next_token_labels(labels));
  }

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_sequence_length() const override { return 1 << 20; }
  double flops_per_token(int64_t /*sequence_length*/) const override {
    const double head = static_cast<double>(config_.hidden_size) * static_cast<double>(config_.vocab_size);
    return static_cast<double>(config_.num_hidden_layers) * sum_of(products_of_block()) + linear_flops(head, 1);
  }
  double recomputed_flops_per_token(int64_t /*sequence_length*/) const override {
    return recomputed_flops_of_all(checkpointing_, config_.num_hidden_layers, products_of_block());
  }
  FolderNames folder_names() const override { return {}; }
  std::vector<std::string> block_class_names() const override { return {"AverageBlock"}; }
  void set_activation_checkpointing(const CheckpointPolicy& policy) override { checkpointing_ = policy; }
  void initialize() override { initialize_parameters(*this, 0.02); }

 private:
  std::vector<Products> products_of_block() const {
    const auto width = static_cast<double>(config_.hidden_size);
    return {{linear_kind(/*with_bias=*/true), linear_flops(2 * width * width, 1)}};
  }

  AverageConfig config_;
  Embedding embed_;
  torch::nn::ModuleList blocks_;
  Linear head_;
  CheckpointPolicy checkpointing_;
};
TORCH_MODULE(AverageLM);

}  // namespace fsdp::models
// [/model]

namespace {

using fsdp::models::AverageLM;

// Builds the model as the registry does for {"model_type": "average", …}.
AverageLM make_model() {
  const nlohmann::json config{{"vocab_size", 61}, {"hidden_size", 48}, {"num_hidden_layers", 3}};
  AverageLM model(fsdp::models::parse_average_config(config), torch::kFloat);
  model->initialize();
  return model;
}

// Makes sequences that count up from a random token.
at::Tensor make_tokens(int rank, int step) {
  torch::manual_seed(1000 * step + rank);
  return (torch::randint(61, {8, 1}) + torch::arange(16)) % 61;
}

void train() {
  torch::manual_seed(0);
  auto model = fsdp::deferred_init(make_model);
  fsdp::Options options = example::make_options();
  options.auto_wrap_policy = fsdp::module_name_policy(model->block_class_names());
  const auto sharded = fsdp::fully_shard(model, options);
  torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(3e-3));
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    const at::Tensor tokens = make_tokens(options.communicator->rank(), step);
    sharded->zero_grad();
    const at::Tensor loss = model->forward(tokens, tokens).loss;
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  example::require(std::abs(first - std::log(61.0)) < 0.1, "a new model knows nothing");
  example::require(last < first / 2, "it learns");
  if (options.communicator->rank() == 0) std::cout << "loss " << first << ", after 60 steps " << last << "\n";
}

}  // namespace

int main() { return example::run(train); }
