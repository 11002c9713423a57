// Trains a model and prints the resident memory of this process, for tests/python/test_offload.py, which starts it once
// for each rank, with the environment of torchrun.
// Usage: offload_memory FOLDER|none adamw|fused LAYERS WIDTH
// Prints the loss and three numbers of resident MiB: after the last step, the peak in forward, and the peak in the
// optimizer's step (0 with adamw).
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "fsdp/backends.h"
#include "fsdp/fsdp.h"
#include "optim/fused_adamw.h"

namespace {

int64_t resident_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") {
      int64_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes / 1024;
    }
  }
  throw std::runtime_error("/proc/self/status has no VmRSS");
}

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (torch::nn::Linear& layer : layers) {
      x = torch::tanh(layer(x));
      most_resident = std::max(most_resident, resident_mib());
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
  int64_t most_resident = 0;
};
TORCH_MODULE(Model);

// AdamW: LibTorch's, or the fused one over shards.
class Optimizer {
 public:
  Optimizer(const std::string& which, fsdp::ShardedModule& sharded) : sharded_(sharded) {
    if (which == "adamw") {
      plain_ = std::make_unique<torch::optim::AdamW>(sharded.parameters(), torch::optim::AdamWOptions(1e-3));
    } else {
      fused_ = std::make_unique<fsdp::optim::FusedAdamW>(sharded.parameters(), fsdp::optim::FusedAdamWOptions{});
      fused_->after_each_part([this] { after_part(); }, int64_t{8} << 20);
    }
  }
  void step() {
    sharded_.with_offloaded_memory([&] { plain_ ? static_cast<void>(plain_->step()) : fused_->step(); });
  }
  int64_t most_resident = 0;

 private:
  void after_part() {
    most_resident = std::max(most_resident, resident_mib());
    sharded_.page_out();
  }

  fsdp::ShardedModule& sharded_;
  std::unique_ptr<torch::optim::AdamW> plain_;
  std::unique_ptr<fsdp::optim::FusedAdamW> fused_;
};

void train(const std::string& folder, const std::string& which, int64_t layers, int64_t width) {
  fsdp::Options options;
  options.communicator = fsdp::make_gloo_communicator(fsdp::rank_environment());
  options.auto_wrap_policy = fsdp::module_class_policy<torch::nn::LinearImpl>();
  if (folder != "none") options.offload_path = folder;
  torch::manual_seed(1);
  Model model(layers, width);
  auto sharded = fsdp::fully_shard(model, options);
  Optimizer optimizer(which, *sharded);
  const torch::Tensor x = torch::linspace(-1, 1, width).view({1, width});
  torch::Tensor loss;
  for (int step = 0; step < 3; ++step) {
    sharded->zero_grad();
    model->most_resident = optimizer.most_resident = 0;
    loss = model->forward(x).square().sum();
    loss.backward();
    optimizer.step();
  }
  std::printf("%.17g %ld %ld %ld\n", loss.item<double>(), resident_mib(), model->most_resident,
              optimizer.most_resident);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  torch::set_num_threads(1);
  try {
    train(argv[1], argv[2], std::stoll(argv[3]), std::stoll(argv[4]));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
