// Measures how well communication and computation overlap: one step of a chain of linear layers, each of which is a
// unit, and the parts of that step. benchmarks/overlap.py starts it once for each rank, with the environment of
// torchrun.
// Usage: overlap VARIANT LAYERS WIDTH BATCH STEPS. Rank 0 prints the seconds of each step, as JSON.
#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"

namespace {

using Work = std::unique_ptr<fsdp::Work>;

struct Setting {
  std::string variant;
  int64_t layers;
  int64_t width;
  int64_t batch;
  int steps;
};

fsdp::Options options_for(const Setting& setting, const std::shared_ptr<fsdp::Communicator>& communicator) {
  fsdp::Options options;
  options.communicator = communicator;
  options.auto_wrap_policy = fsdp::module_class_policy<torch::nn::LinearImpl>();
  const bool ahead = setting.variant != "no prefetch";
  options.forward_prefetch = ahead;
  options.backward_prefetch = setting.variant == "backward post" ? fsdp::BackwardPrefetch::kPost
                              : ahead                            ? fsdp::BackwardPrefetch::kPre
                                                                 : fsdp::BackwardPrefetch::kNone;
  options.one_communicator = setting.variant == "one communicator";
  options.limit_all_gathers = setting.variant != "no limit";
  return options;
}

// Runs forward and backward of the sharded chain.
std::function<void()> make_step(const Setting& setting, const std::shared_ptr<fsdp::Communicator>& communicator) {
  torch::manual_seed(0);
  torch::nn::Sequential row;
  for (int64_t i = 0; i < setting.layers; ++i) {
    row->push_back(torch::nn::Linear(torch::nn::LinearOptions(setting.width, setting.width).bias(false)));
    row->push_back(torch::nn::Tanh());
  }
  auto sharded = fsdp::fully_shard(row, options_for(setting, communicator));
  torch::Tensor input = torch::randn({setting.batch, setting.width});
  return [=]() mutable {
    sharded->zero_grad();
    row->forward(input).sum().backward();
  };
}

// Runs the collectives of such a step in the engine's order, without computation between them.
class Collectives {
 public:
  Collectives(const Setting& setting, std::shared_ptr<fsdp::Communicator> communicator)
      : layers_(static_cast<int>(setting.layers)), gathers_(std::move(communicator)), reduces_(gathers_->twin()) {
    const int64_t numel = setting.width * setting.width;
    shard_ = torch::zeros({numel / gathers_->size()});
    reduced_ = torch::zeros_like(shard_);
    for (int i = 0; i < 2; ++i) {
      full_.push_back(torch::zeros({numel}));
      gradients_.push_back(torch::zeros({numel}));
    }
  }

  void operator()() {
    ++generation_;
    for (int i = 0; i < layers_; ++i) gather(i, fsdp::Pass::kForward);
    finish(gather_);
    for (int i = layers_ - 1; i >= 0; --i) {
      if (i < layers_ - 1) gather(i, fsdp::Pass::kBackward);
      finish(reduce_);
      reduce_ = reduces_->reduce_scatter(reduced_, gradients_[i % 2], {}, {name(i), generation_, fsdp::Pass::kReduce},
                                         nullptr);
    }
    finish(gather_);
    finish(reduce_);
  }

 private:
  static std::string name(int layer) { return "layer " + std::to_string(layer); }
  static void finish(Work& work) {
    if (work) work->wait();
    work.reset();
  }
  void gather(int layer, fsdp::Pass pass) {
    Work next = gathers_->all_gather(full_[layer % 2], shard_, {name(layer), generation_, pass});
    finish(gather_);
    gather_ = std::move(next);
  }

  int layers_;
  std::shared_ptr<fsdp::Communicator> gathers_;
  std::shared_ptr<fsdp::Communicator> reduces_;
  torch::Tensor shard_, reduced_;
  std::vector<torch::Tensor> full_, gradients_;
  Work gather_, reduce_;
  uint64_t generation_ = 0;
};

std::function<void()> make_work(const Setting& setting, const std::shared_ptr<fsdp::Communicator>& communicator) {
  if (setting.variant == "computation alone") {
    return make_step(setting, fsdp::make_fake_communicator(communicator->rank(), communicator->size()));
  }
  if (setting.variant == "communication alone") {
    return [collectives = std::make_shared<Collectives>(setting, communicator)] { (*collectives)(); };
  }
  return make_step(setting, communicator);
}

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: overlap VARIANT LAYERS WIDTH BATCH STEPS\n");
    return 2;
  }
  at::set_num_threads(1);
  const Setting setting{argv[1], std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]), std::atoi(argv[5])};
  const auto communicator = fsdp::make_gloo_communicator(fsdp::rank_environment());
  const auto work = make_work(setting, communicator);
  constexpr int kWarmUp = 2;
  std::string times;
  for (int step = 0; step < kWarmUp + setting.steps; ++step) {
    communicator->all_gather_bytes("", {"start of a step", static_cast<uint64_t>(step), fsdp::Pass::kUser});
    const double seconds = seconds_of(work);
    if (step >= kWarmUp) times += (times.empty() ? "" : ", ") + std::to_string(seconds);
  }
  if (communicator->rank() == 0) std::printf("[%s]\n", times.c_str());
  return 0;
}
