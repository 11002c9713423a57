// LoRA: a transformer with frozen weights, and small trainable matrices added to them. Each unit then has a frozen and
// a trainable FlatParameter. Only the trainable one has gradients and optimizer state:
//   torchrun --no-python --nproc-per-node 2 build/lora
#include <cmath>

#include "example.h"

using namespace example;

constexpr int64_t kVocabulary = 64, kWidth = 64, kRank = 4, kLength = 16;

// Computes y = x W^T + x A^T B^T. B is initialised with zeros.
struct LoraLinearImpl : torch::nn::Module {
  LoraLinearImpl(int64_t in, int64_t out)
      : weight(register_parameter("weight", torch::randn({out, in}) / std::sqrt(in))),
        lora_a(register_parameter("lora_a", torch::randn({kRank, in}) / std::sqrt(in))),
        lora_b(register_parameter("lora_b", torch::zeros({out, kRank}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return torch::linear(x, weight) + torch::linear(torch::linear(x, lora_a), lora_b);
  }
  at::Tensor weight, lora_a, lora_b;
};
TORCH_MODULE(LoraLinear);

struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : qkv(register_module("qkv", LoraLinear(kWidth, 3 * kWidth))),
        out(register_module("out", LoraLinear(kWidth, kWidth))),
        up(register_module("up", LoraLinear(kWidth, 4 * kWidth))),
        down(register_module("down", LoraLinear(4 * kWidth, kWidth))) {}
  at::Tensor forward(at::Tensor x) {
    const auto heads = qkv(torch::layer_norm(x, {kWidth})).view({x.size(0), x.size(1), 3, 4, kWidth / 4}).unbind(2);
    const at::Tensor attended = at::scaled_dot_product_attention(heads[0].transpose(1, 2), heads[1].transpose(1, 2),
                                                                 heads[2].transpose(1, 2), {}, 0.0, /*is_causal=*/true);
    x = x + out(attended.transpose(1, 2).flatten(2));
    return x + down(torch::gelu(up(torch::layer_norm(x, {kWidth}))));
  }
  LoraLinear qkv, out, up, down;
};
TORCH_MODULE(Layer);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl()
      : embed(register_module("embed", torch::nn::Embedding(kVocabulary, kWidth))),
        layer0(register_module("layer0", Layer())),
        layer1(register_module("layer1", Layer())) {
    torch::nn::init::normal_(embed->weight, 0.0, 0.1);
  }
  // Returns the loss of predicting each next token.
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = layer1(layer0(embed(ids.narrow(1, 0, kLength - 1))));
    const at::Tensor logits = torch::linear(torch::layer_norm(x, {kWidth}), embed->weight);
    return torch::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, kLength - 1).flatten());
  }
  torch::nn::Embedding embed;
  Layer layer0, layer1;
};
TORCH_MODULE(Transformer);

bool is_lora(const std::string& name) { return name.find("lora_") != std::string::npos; }

struct Outcome {
  int64_t shards = 0, optimizer_state = 0;  // bytes on this rank
  fsdp::EngineStats stats;
  float first = 0, last = 0;  // losses
  bool frozen_changed = false;
};

Outcome train(fsdp::Options options, bool freeze) {
  torch::manual_seed(0);
  Transformer model;
  for (auto& item : model->named_parameters()) item.value().requires_grad_(!freeze || is_lora(item.key()));
  options.auto_wrap_policy = fsdp::module_class_policy<LayerImpl>();
  auto sharded = fsdp::fully_shard(*model, options);

  Outcome outcome;
  std::vector<at::Tensor> trainable, frozen, frozen_before;
  for (const at::Tensor& leaf : sharded->parameters()) {
    outcome.shards += leaf.nbytes();
    (leaf.requires_grad() ? trainable : frozen).push_back(leaf);
  }
  for (const at::Tensor& leaf : frozen) frozen_before.push_back(leaf.clone());
  for (const at::Tensor& leaf : trainable) outcome.optimizer_state += 2 * leaf.nbytes();  // AdamW's two averages
  torch::optim::AdamW optimizer(trainable, torch::optim::AdamWOptions(5e-3));
  torch::manual_seed(1 + options.communicator->rank());
  const at::Tensor ids = torch::randint(kVocabulary, {4, kLength});
  for (int step = 0; step < 20; ++step) {
    sharded->zero_grad();
    const at::Tensor loss = model->forward(ids);
    loss.backward();
    optimizer.step();
    (step == 0 ? outcome.first : outcome.last) = loss.item<float>();
  }
  outcome.stats = sharded->diagnostics().stats();
  for (size_t i = 0; i < frozen.size(); ++i) outcome.frozen_changed |= !torch::equal(frozen[i], frozen_before[i]);
  return outcome;
}

void print(const char* what, const Outcome& outcome) {
  std::cout << what << ": bytes of shards " << outcome.shards << ", of gathered units at most "
            << outcome.stats.peak_gathered_bytes << ", of gradient buffers at most "
            << outcome.stats.peak_gradient_buffer_bytes << ", of optimizer state " << outcome.optimizer_state
            << "; loss " << outcome.first << " -> " << outcome.last << "\n";
}

// Returns the bytes of all LoRA matrices of the model.
int64_t lora_bytes() {
  int64_t bytes = 0;
  Transformer model;
  for (const auto& item : model->named_parameters()) bytes += is_lora(item.key()) ? item.value().nbytes() : 0;
  return bytes;
}

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    const Outcome all = train(options, /*freeze=*/false), lora = train(options, /*freeze=*/true);
    if (options.communicator->rank() == 0) {
      print("all trained ", all);
      print("LoRA trained", lora);
    }
    require(!lora.frozen_changed && lora.last < lora.first, "frozen weights stay, and the loss falls all the same");
    require(lora.stats.peak_gradient_buffer_bytes <= lora_bytes(), "gradient buffers hold LoRA's gradients only");
    // A single rank has no gradient buffers, because it reduces nothing: gradients are captured directly into the
    // leaves' gradients.
    const bool buffers = options.communicator->size() > 1;
    require(!buffers || all.stats.peak_gradient_buffer_bytes > lora_bytes(), "without freezing they hold more");
  });
}
