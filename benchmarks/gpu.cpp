// Measures training steps of a decoder on one device, sharded or not: time, host time, and the work of the device's
// allocator. benchmarks/gpu.py starts it. PyTorch's side is gpu_torch.py.
// Usage: gpu SETTINGS, a JSON object that both sides take. Rank 0 prints a JSON object.
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"
#include "optim/fused_adamw.h"
#include "transformer.h"

namespace {

using fsdp::benchmarks::AllocatorUse;
using fsdp::benchmarks::Transformer;
using nlohmann::json;

std::shared_ptr<fsdp::Communicator> make_communicator(const json& settings) {
  const std::string group = settings.at("group");
  if (group == "fake") return fsdp::make_fake_communicator(0, settings.at("fake_ranks"));
  if (group == "nccl") return fsdp::make_nccl_communicator(fsdp::rank_environment());
  TORCH_CHECK(group == "gloo", "unknown group '", group, "': fake, nccl or gloo");
  return fsdp::make_gloo_communicator(fsdp::rank_environment());
}

c10::ScalarType dtype_of(const json& settings) {
  const std::string name = settings.at("dtype");
  TORCH_CHECK(name == "bf16" || name == "fp32", "unknown dtype '", name, "': bf16 or fp32");
  return name == "bf16" ? at::kBFloat16 : at::kFloat;
}

fsdp::Options options_of(const json& settings) {
  const std::string variant = settings.at("variant");
  fsdp::Options options;
  options.communicator = make_communicator(settings);
  options.auto_wrap_policy = fsdp::module_class_policy<fsdp::benchmarks::DecoderBlockImpl>();
  options.param_dtype = dtype_of(settings);
  options.reduce_dtype = at::kFloat;
  if (variant == "flat") {
    options.use_orig_params = false;
  } else if (variant == "no prefetch") {
    options.backward_prefetch = fsdp::BackwardPrefetch::kNone;
    options.forward_prefetch = false;
  } else if (variant == "gradients kept") {
    options.keep_memory = true;
  } else {
    TORCH_CHECK(variant == "default", "unknown variant '", variant, "'");
  }
  return options;
}

// A model, its optimizer and its input, and the durations of its steps in milliseconds.
class Training {
 public:
  Training(const json& settings, c10::Device device) : device_(device) {
    const bool plain = settings.at("variant") == "plain";
    const auto options = at::TensorOptions().device(device).dtype(plain ? dtype_of(settings) : at::kFloat);
    const fsdp::benchmarks::TransformerSizes sizes{settings.at("layers"), settings.at("width"), settings.at("heads"),
                                                   settings.at("vocabulary")};
    model_ = Transformer(sizes, options);
    if (!plain) sharded_ = fsdp::fully_shard(model_, options_of(settings));
    optimizer_ = std::make_unique<fsdp::optim::FusedAdamW>(plain ? model_->parameters() : sharded_->parameters(),
                                                           fsdp::optim::FusedAdamWOptions{.learning_rate = 1e-4});
    tokens_ = at::randint(sizes.vocabulary, {settings.at("batch"), settings.at("length")}, options.dtype(at::kLong));
  }

  void step(bool keep_times) {
    fsdp::benchmarks::synchronize(device_);
    const auto start = Clock::now();
    if (sharded_) {
      sharded_->zero_grad();
    } else {
      model_->zero_grad();
    }
    model_->forward(tokens_).backward();
    const auto returned = Clock::now();
    optimizer_->step();
    fsdp::benchmarks::synchronize(device_);
    if (!keep_times) return;
    host_.push_back(milliseconds(returned - start));
    steps_.push_back(milliseconds(Clock::now() - start));
  }

  json times() const { return {{"host_ms", host_}, {"step_ms", steps_}}; }

 private:
  using Clock = std::chrono::steady_clock;
  static double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

  c10::Device device_;
  Transformer model_ = nullptr;
  std::shared_ptr<fsdp::ShardedModule> sharded_;
  std::unique_ptr<fsdp::optim::FusedAdamW> optimizer_;
  at::Tensor tokens_;
  std::vector<double> host_, steps_;
};

json memory_of(const AllocatorUse& use) {
  const auto report = use.report();
  if (!report)
    return {{"peak_allocated", nullptr}, {"peak_reserved", nullptr}, {"retries", nullptr}, {"device_allocs", nullptr}};
  return {{"peak_allocated", report->peak_allocated},
          {"peak_reserved", report->peak_reserved},
          {"retries", report->retries},
          {"device_allocs", report->device_allocs}};
}

json measure(const json& settings, int local_rank) {
  const c10::Device device = fsdp::benchmarks::use_device(settings.at("device"), local_rank);
  Training training(settings, device);
  AllocatorUse use(device);
  use.give_back_cache();  // which held the whole model
  const int warm_up = settings.at("warm_up"), steps = settings.at("steps");
  for (int step = 0; step < warm_up + steps; ++step) {
    if (step == warm_up) use.begin();
    training.step(step >= warm_up);
  }
  json result = training.times();
  result.update(memory_of(use));
  result["torch"] = TORCH_VERSION;
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gpu SETTINGS (benchmarks/gpu.py)\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    torch::manual_seed(0);
    const json settings = json::parse(argv[1]);
    const bool fake = settings.at("group") == "fake";
    const fsdp::RankEnvironment place = fake ? fsdp::RankEnvironment{} : fsdp::rank_environment();
    const json result = measure(settings, place.local_rank);
    if (place.rank == 0) std::printf("%s\n", result.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
