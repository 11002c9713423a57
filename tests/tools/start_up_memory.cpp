// Shards and trains a model under a limit on the data segment of this process (RLIMIT_DATA), for
// tests/python/test_start_up.py, which starts it once for each rank, with the environment of torchrun.
// Usage: start_up_memory deferred|eager LAYERS WIDTH LIMIT_MIB
#include <sys/resource.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "fsdp/backends.h"
#include "fsdp/deferred_init.h"
#include "fsdp/fsdp.h"

namespace {

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(int64_t width)
      : linear(register_module("linear", torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Layer);

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; ++i) layers.push_back(register_module("layer" + std::to_string(i), Layer(width)));
    apply([](torch::nn::Module& module) {
      if (auto* linear = module.as<torch::nn::Linear>()) torch::nn::init::normal_(linear->weight, 0, 0.02);
    });
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Layer& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Layer> layers;
};
TORCH_MODULE(Model);

rlim_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmData:") {
      rlim_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes * 1024;
    }
  }
  throw std::runtime_error("/proc/self/status has no VmData");
}

// Limits the memory of this process to its current size plus `bytes`.
void limit_data(rlim_t bytes) {
  const rlim_t most = data_bytes() + bytes;
  const rlimit limit{most, most};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) throw std::runtime_error("setrlimit failed");
}

double train(const std::string& how, int64_t layers, int64_t width, rlim_t limit) {
  fsdp::Options options;
  options.communicator = fsdp::make_gloo_communicator(fsdp::rank_environment());
  options.auto_wrap_policy = fsdp::module_class_policy<LayerImpl>();
  limit_data(limit);
  torch::manual_seed(1);
  auto build = [&] { return Model(layers, width); };
  Model model = how == "deferred" ? fsdp::deferred_init(build) : build();
  auto sharded = fsdp::fully_shard(model, options);
  torch::optim::SGD optimizer(sharded->parameters(), torch::optim::SGDOptions(0.1));
  const torch::Tensor x = torch::linspace(-1, 1, width).view({1, width});
  torch::Tensor loss;
  for (int step = 0; step < 2; ++step) {
    sharded->zero_grad();
    loss = model->forward(x).square().sum();
    loss.backward();
    optimizer.step();
  }
  return loss.item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  torch::set_num_threads(1);
  try {
    const rlim_t mebibyte = 1 << 20;
    std::printf("%.17g\n", train(argv[1], std::stoll(argv[2]), std::stoll(argv[3]), std::stoull(argv[4]) * mebibyte));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
