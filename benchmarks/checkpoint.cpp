// Measures the cost of saving and loading a training state, compared with plain writes of the same number of bytes.
// benchmarks/checkpoint.py starts it once for each rank, with the environment of torchrun.
// Usage: checkpoint_bench FOLDER LAYERS WIDTH TURNS. Rank 0 prints the seconds and the memory of every rank by turn,
// and the bytes of its own state, as JSON.
#include <fcntl.h>
#include <malloc.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"
#include "optim/fused_adamw.h"
#include "state/async_saver.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t memory_of(const char* name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == name && status >> kib) return kib * 1024;
  }
  return 0;
}

// The duration of a part, and the most memory that it needs in addition to the memory resident before it.
struct Cost {
  double seconds = 0;
  int64_t memory = 0;
};
template <typename Part>
Cost cost_of(const Part& part) {
  ::malloc_trim(0);                             // otherwise, `part` could reuse freed memory
  std::ofstream("/proc/self/clear_refs") << 5;  // resets the high-water mark to the memory resident now
  const int64_t before = memory_of("VmRSS:");
  const auto start = Clock::now();
  part();
  return {seconds_since(start), std::max<int64_t>(memory_of("VmHWM:") - before, 0)};
}

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t layers, int64_t width) {
    for (int64_t i = 0; i < layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), torch::nn::Linear(width, width)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) x = torch::tanh(block(x));
    return x;
  }
  std::vector<torch::nn::Linear> blocks;
};
TORCH_MODULE(Model);

class Bench {
 public:
  Bench(fs::path folder, int64_t layers, int64_t width, std::shared_ptr<fsdp::Communicator> world)
      : folder_(std::move(folder)), world_(std::move(world)), model_(layers, width), saver_(world_) {
    fsdp::Options options;
    options.communicator = world_;
    options.auto_wrap_policy = fsdp::module_class_policy<torch::nn::LinearImpl>();
    sharded_ = fsdp::fully_shard(*model_, options);
    optimizer_ = std::make_unique<fsdp::optim::FusedAdamW>(sharded_->parameters(), fsdp::optim::FusedAdamWOptions{});
    model_->forward(torch::ones({1, width})).sum().backward();
    optimizer_->step();
    sharded_->zero_grad();
    state_ = optimizer_->named_state();
  }

  void turn() {
    note("plain write and fsync", cost_of([&] { write_plainly(); }));
    note("save", apart([&] { fsdp::state::save_training_state(path(), state(), {{"step", 1}}, *world_); }));
    note("load", apart([&] { fsdp::state::load_training_state(path(), state(), *world_); }));
    remove();
    const Cost stall = apart([&] { saver_.save(path(), state(), {{"step", 1}}); });
    const Cost rest = cost_of([&] { saver_.finish(); });
    note("async_save, stall", stall);
    note("async_save, all", {stall.seconds + rest.seconds, std::max(stall.memory, rest.memory)});
    note("copy", cost_of([&] { copy_plainly(); }));
    remove();
  }

  // The measurements of all ranks, by turn, and the bytes of this rank's state.
  nlohmann::json results() const {
    nlohmann::json all = nlohmann::json::array();
    for (const std::string& text : world_->all_gather_bytes(results_.dump(), {"results", 0, fsdp::Pass::kUser})) {
      all.push_back(nlohmann::json::parse(text));
    }
    return {{"bytes", nbytes()}, {"ranks", all}};
  }

 private:
  fs::path path() const { return folder_ / "checkpoint"; }
  void remove() {
    world_->barrier({"done", 0, fsdp::Pass::kUser});
    if (world_->rank() == 0) fs::remove_all(path());
  }
  fsdp::state::TrainingState state() { return {{{*sharded_, *model_}}, state_.get()}; }
  template <typename Part>
  Cost apart(const Part& part) {
    world_->barrier({"begin", 0, fsdp::Pass::kUser});
    return cost_of(part);
  }
  void note(const char* name, const Cost& cost) {
    results_[name]["seconds"].push_back(cost.seconds);
    results_[name]["memory"].push_back(cost.memory);
  }
  int64_t nbytes() const {
    int64_t sum = optimizer_->state_nbytes();
    for (const at::Tensor& parameter : sharded_->parameters()) sum += static_cast<int64_t>(parameter.nbytes());
    return sum;
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& leaf : sharded_->parameters()) {
      all.push_back(leaf.detach());
      // A leaf without elements on this rank has no optimizer state.
      const auto kept = state_->leaf(leaf).value_or(fsdp::LeafState{});
      for (const auto& [name, tensor] : kept.tensors) all.push_back(tensor);
    }
    return all;
  }
  void write_plainly() {
    const fs::path file = folder_ / ("plain" + std::to_string(world_->rank()));
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (const at::Tensor& tensor : tensors()) {
      const char* data = static_cast<const char*>(tensor.const_data_ptr());
      for (size_t done = 0; done < tensor.nbytes();) {
        const ssize_t written = ::write(descriptor, data + done, tensor.nbytes() - done);
        if (written <= 0) std::abort();
        done += static_cast<size_t>(written);
      }
    }
    if (::fsync(descriptor) != 0) std::abort();
    ::close(descriptor);
    fs::remove(file);
  }
  void copy_plainly() {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors()) copies.push_back(tensor.clone());
  }

  fs::path folder_;
  std::shared_ptr<fsdp::Communicator> world_;
  Model model_;
  std::shared_ptr<fsdp::ShardedModule> sharded_;
  std::unique_ptr<fsdp::optim::FusedAdamW> optimizer_;
  std::unique_ptr<fsdp::OptimizerState> state_;
  fsdp::state::AsyncSaver saver_;
  nlohmann::json results_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const auto world = fsdp::make_gloo_communicator(fsdp::rank_environment());
  Bench bench(argv[1], std::atol(argv[2]), std::atol(argv[3]), world);
  for (int64_t turn = 0; turn < std::atol(argv[4]); ++turn) bench.turn();
  const nlohmann::json results = bench.results();
  if (world->rank() == 0) std::printf("%s\n", results.dump().c_str());
}
