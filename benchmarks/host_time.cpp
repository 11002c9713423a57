// Measures the host time that one unit adds to forward and backward, with a chain of small blocks, plain and sharded
// over a fake group of eight ranks. The time of a unit is the slope between a short and a long chain, so that the fixed
// cost of a step cancels out. Steps of all variants take turns. On a device, the time ends when backward returns, not
// when the device has finished; the program waits for the device between steps. Prints one JSON object for each line.
// PyTorch's side is host_time.py. Usage: host_time [STEPS [cpu|cuda]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "block.h"
#include "device.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"

namespace {

using fsdp::benchmarks::Block;
using fsdp::benchmarks::BlockImpl;

constexpr int kRanks = 8;
constexpr int64_t kWidth = 32;
constexpr int64_t kRows = 4;
constexpr int kFewUnits = 4;
constexpr int kManyUnits = 12;
constexpr int kWarmUpSteps = 20;

struct Variant {
  std::string name;
  bool sharded = true;
  fsdp::ShardingStrategy strategy = fsdp::ShardingStrategy::kFullShard;
  bool use_orig_params = true;
};

// A chain of blocks of one variant, and the durations of its steps.
class Chain {
 public:
  Chain(const Variant& variant, int units, c10::Device device) : device_(device) {
    torch::manual_seed(0);
    for (int unit = 0; unit < units; ++unit) model_->push_back(Block(kWidth, 2 * kWidth));
    model_->to(device);
    if (!variant.sharded) return;
    fsdp::Options options;
    options.communicator = fsdp::make_fake_communicator(0, kRanks);
    options.auto_wrap_policy = fsdp::module_class_policy<BlockImpl>();
    options.sharding_strategy = variant.strategy;
    options.use_orig_params = variant.use_orig_params;
    sharded_ = fsdp::fully_shard(*model_, options);
  }

  void step(const at::Tensor& input, bool keep_time) {
    const auto start = std::chrono::steady_clock::now();
    model_->forward(input).sum().backward();
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    if (keep_time) times_.push_back(elapsed.count());
    fsdp::benchmarks::synchronize(device_);
    if (sharded_) {
      sharded_->zero_grad();
    } else {
      model_->zero_grad();
    }
  }

  double median_milliseconds() {
    auto middle = times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2);
    std::nth_element(times_.begin(), middle, times_.end());
    return *middle;
  }

 private:
  c10::Device device_;
  torch::nn::Sequential model_;
  std::shared_ptr<fsdp::ShardedModule> sharded_;
  std::vector<double> times_;
};

struct Measurement {
  Measurement(const Variant& variant, c10::Device device)
      : few(variant, kFewUnits, device), many(variant, kManyUnits, device) {}

  double milliseconds_per_unit() {
    return (many.median_milliseconds() - few.median_milliseconds()) / (kManyUnits - kFewUnits);
  }

  Chain few, many;
};

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::stoi(argv[1]) : 150;
  const c10::Device device = fsdp::benchmarks::use_device(argc > 2 ? argv[2] : "cpu");
  at::set_num_threads(1);
  using enum fsdp::ShardingStrategy;
  const std::vector<Variant> variants = {{.name = "plain", .sharded = false},
                                         {.name = "fsdp.cpp full_shard"},
                                         {.name = "fsdp.cpp full_shard, flat", .use_orig_params = false},
                                         {.name = "fsdp.cpp shard_grad_op", .strategy = kShardGradOp},
                                         {.name = "fsdp.cpp no_shard", .strategy = kNoShard}};
  std::vector<Measurement> measurements;
  for (const Variant& variant : variants) measurements.emplace_back(variant, device);
  const at::Tensor input = torch::randn({kRows, kWidth}, device);
  for (int step = 0; step < kWarmUpSteps + steps; ++step) {
    for (Measurement& measurement : measurements) {
      measurement.few.step(input, step >= kWarmUpSteps);
      measurement.many.step(input, step >= kWarmUpSteps);
    }
  }
  const double plain = measurements.front().milliseconds_per_unit();
  for (size_t index = 1; index < variants.size(); ++index) {
    std::printf("{\"variant\": \"%s\", \"plain_ms\": %.6f, \"added_ms\": %.6f}\n", variants[index].name.c_str(), plain,
                measurements[index].milliseconds_per_unit() - plain);
  }
}
