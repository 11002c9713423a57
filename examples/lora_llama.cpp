// LoRA on a frozen Llama: compares its memory with the memory for training all parameters. Takes the folder of a
// Hugging Face Llama; without one, uses a small random Llama:
//   torchrun --no-python --nproc-per-node 2 build/lora_llama [FOLDER]
// The frozen and the trainable parameters of a block are two FlatParameters of one unit. They are gathered together,
// but only the trainable one has gradients, gradient buffers and optimizer state.
#include <torch/torch.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/hugging_face/hf_folder.h"
#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"
#include "models/causal_lm.h"
#include "models/lora.h"
#include "optim/fused_adamw.h"

namespace {

nlohmann::json small_llama() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 128},
          {"hidden_size", 64},
          {"intermediate_size", 160},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 64},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", true}};
}

struct Memory {
  double shards, gradients, optimizer, gradient_buffers, gathered;  // MB on this rank
  float first_loss, last_loss;
};

double megabytes(double bytes) { return bytes / 1e6; }

bool is_named(const fsdp::ShardSlice& slice, const char* name) { return slice.fqn.find(name) != std::string::npos; }

// Each rank fills its own shards. Because lora_B is zero, the adapters change nothing at first.
void fill(const fsdp::ShardedModule& sharded, const std::optional<fsdp::formats::HfFolder>& folder) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (const fsdp::ShardSlice& slice : sharded.shard_slices()) {
    if (is_named(slice, "lora_B")) {
      slice.data.zero_();
    } else if (folder && !is_named(slice, "lora_A") && slice.begin < slice.end) {
      folder->read_range(slice.fqn, slice.begin, slice.end, slice.data);
    } else {
      slice.data.normal_(0.0, 0.02);
    }
  }
}

Memory train(const std::optional<fsdp::formats::HfFolder>& folder, bool lora, const fsdp::Options& base) {
  auto model = fsdp::models::make_causal_lm(folder ? folder->config() : small_llama(), torch::kFloat, torch::kMeta);
  if (lora) fsdp::models::add_lora(*model, {.rank = 8});
  fsdp::Options options = base;
  options.device = torch::Device(torch::kCPU);
  options.auto_wrap_policy = fsdp::module_name_policy(model->block_class_names());
  auto sharded = fsdp::fully_shard(*model, options);
  fill(*sharded, folder);
  fsdp::optim::FusedAdamW optimizer(sharded->parameters(), {.learning_rate = lora ? 1e-2 : 1e-3});
  const torch::Tensor tokens = torch::arange(32).view({1, 32}) * 3 % 97 + options.communicator->rank();
  Memory memory{};
  for (int step = 0; step < 4; ++step) {
    sharded->zero_grad();
    torch::Tensor loss = model->forward(tokens, tokens).loss;
    loss.backward();
    optimizer.step();
    (step == 0 ? memory.first_loss : memory.last_loss) = loss.item<float>();
  }
  for (const torch::Tensor& leaf : sharded->parameters()) {
    const double bytes = static_cast<double>(leaf.nbytes());
    memory.shards += megabytes(bytes);
    memory.gradients += leaf.grad().defined() ? megabytes(bytes) : 0;
    memory.optimizer += leaf.grad().defined() ? 2 * megabytes(bytes) : 0;  // the two averages of AdamW
  }
  memory.gradient_buffers = megabytes(static_cast<double>(sharded->diagnostics().stats().peak_gradient_buffer_bytes));
  memory.gathered = megabytes(static_cast<double>(sharded->diagnostics().stats().peak_gathered_bytes));
  return memory;
}

void print(const char* name, const Memory& m) {
  std::printf(
      "%-10s shards %8.3f MB  gradients %8.3f  AdamW %8.3f  gradient buffers %8.3f  gathered %8.3f  loss %.3f -> "
      "%.3f\n",
      name, m.shards, m.gradients, m.optimizer, m.gradient_buffers, m.gathered, m.first_loss, m.last_loss);
}

}  // namespace

int main(int argc, char** argv) {
  fsdp::Options options;
  options.communicator = fsdp::make_cpu_communicator(fsdp::rank_environment()).communicator;
  std::optional<fsdp::formats::HfFolder> folder;
  if (argc > 1) folder.emplace(argv[1]);
  const Memory all = train(folder, /*lora=*/false, options);
  const Memory lora = train(folder, /*lora=*/true, options);
  if (options.communicator->rank() == 0) {
    print("all", all);
    print("LoRA", lora);
  }
  const bool cheaper = lora.gradients < all.gradients / 10 && lora.optimizer < all.optimizer / 10 &&
                       lora.gradient_buffers <= all.gradient_buffers / 5;  // a single rank needs none
  return cheaper && lora.last_loss < lora.first_loss ? 0 : 1;
}
