#include "growth_jobs.h"

#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "fsdp/auto_units.h"
#include "fsdp/backends.h"
#include "fsdp/checkpoint.h"
#include "fsdp/communicator.h"
#include "fsdp/deferred_init.h"
#include "fsdp/fully_shard.h"
#include "fsdp/optimizer_state.h"
#include "fsdp/state_dict.h"
#include "fsdp/trace.h"

namespace fsdp::growth {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWidth = 8;
constexpr int kRanks = 4;  // this process is one of them
constexpr int kSteps = 4;  // the first step is measured separately

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t parameters) {
    for (int64_t i = 0; i < parameters; ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i), torch::ones({kWidth})));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const at::Tensor& weight : weights) x = x * weight;
    return x;
  }
  std::vector<at::Tensor> weights;
};
TORCH_MODULE(Block);

torch::nn::Sequential chain(int64_t blocks, int64_t parameters) {
  torch::nn::Sequential model;
  for (int64_t i = 0; i < blocks; ++i) model->push_back(Block(parameters));
  return model;
}

// A block of its own and the next NestImpl, `depth` levels deep.
struct NestImpl : torch::nn::Module {
  explicit NestImpl(int64_t depth) : own(register_module("own", Block(1))) {
    if (depth > 1) inner = register_module("inner", std::make_shared<NestImpl>(depth - 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = own(x);
    return inner ? own(inner->forward(y)) : y;
  }
  Block own;
  std::shared_ptr<NestImpl> inner;
};

// Names the environment variable with the folder in which a checkpoint is kept for other programs. If it is unset, the
// checkpoint is made in the temporary folder and removed.
constexpr const char* kKeptFolder = "FSDP_GROWTH_FOLDER";
fs::path kept_folder() {
  const char* folder = std::getenv(kKeptFolder);
  return folder != nullptr ? fs::path(folder) : fs::temp_directory_path() / "growth-checkpoint";
}

Options options_for(int ranks, WrapPolicy policy = module_class_policy<BlockImpl>()) {
  Options options;
  options.communicator = make_fake_communicator(0, ranks);
  options.auto_wrap_policy = std::move(policy);
  return options;
}

template <typename Model>
void train(Model& model, const std::string& name, const Meter& meter, const std::function<void()>& zero_grad) {
  const at::Tensor input = torch::ones({kWidth});
  for (int step = 0; step < kSteps; ++step) {
    meter(step == 0 ? "first " + name : name, [&] { model.forward(input).sum().backward(); });
    if (step + 1 < kSteps) zero_grad();
  }
}

// Trains the same model without sharding, for comparison: LibTorch's own cost also grows when a model exceeds the
// processor's caches.
void train_plain(torch::nn::SequentialImpl& model, const Meter& meter) {
  train(model, "plain step", meter, [&] { model.zero_grad(); });
}

void units(int64_t count, int64_t parameters, const Options& options, const Meter& meter) {
  torch::nn::Sequential model = chain(count, parameters), plain = chain(count, parameters);
  std::shared_ptr<ShardedModule> sharded;
  meter("fully_shard", [&] { sharded = fully_shard(*model, options); });
  train(*model, "step", meter, [&] { meter("zero_grad", [&] { sharded->zero_grad(); }); });
  meter("clip_grad_norm_", [&] { sharded->clip_grad_norm_(1.0); });
  torch::optim::SGD optimizer(sharded->parameters(), 1e-3);
  meter("optimizer", [&] { optimizer.step(); });
  meter("memory_summary", [&] { sharded->diagnostics().memory_summary(); });
  meter("full_state_dict", [&] { full_state_dict(*sharded, *model); });
  sharded->tracing().start();
  model->forward(torch::ones({kWidth})).sum().backward();  // memory samples depend on time: only the file counts
  const fs::path file = fs::temp_directory_path() / ("growth-trace-" + std::to_string(getpid()) + ".json");
  const auto own = make_fake_communicator(0, 1);
  meter("trace", [&] { write_trace(file, *own, sharded->tracing().stop()); });
  fs::remove(file);
  train_plain(*plain, meter);
}

void units_by_policy(int64_t count, const Meter& meter) { units(count, 1, options_for(kRanks), meter); }
void units_of_six(int64_t count, const Meter& meter) { units(count, 6, options_for(kRanks), meter); }

void units_that_stay(int64_t count, const Meter& meter) {
  Options options = options_for(kRanks);
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  units(count, 1, options, meter);
}

void units_without_limit(int64_t count, const Meter& meter) {
  Options options = options_for(kRanks);
  options.limit_all_gathers = false;
  units(count, 1, options, meter);
}

void automatic_units(int64_t parameters, const Meter& meter) {
  Options options = options_for(kRanks, {});
  options.auto_units = AutoUnits{};
  units(parameters, 1, options, meter);
}

void one_unit(int64_t parameters, const Meter& meter) {
  Options options = options_for(kRanks, {});
  options.full_precision_classes = {"Block"};
  units(parameters, 1, options, meter);
}

// Calls fully_shard for each block, then for the whole model.
void units_by_hand(int64_t count, const Meter& meter) {
  torch::nn::Sequential model = chain(count, 1);
  const Options options = options_for(kRanks, {});
  std::shared_ptr<ShardedModule> sharded;
  meter("fully_shard", [&] {
    for (const auto& block : model->children()) fully_shard(*block, options);
    sharded = fully_shard(*model, options);
  });
  train(*model, "step", meter, [&] { sharded->zero_grad(); });
}

void nested_units(int64_t count, const Meter& meter) {
  constexpr int64_t kDepth = 50;
  torch::nn::Sequential model;
  for (int64_t i = 0; i < count / kDepth; ++i) model->push_back(std::make_shared<NestImpl>(kDepth));
  std::shared_ptr<ShardedModule> sharded;
  const Options options = options_for(kRanks, module_class_policy<BlockImpl, NestImpl>());
  meter("fully_shard", [&] { sharded = fully_shard(*model, options); });
  train(*model, "step", meter, [&] { sharded->zero_grad(); });
}

void deferred_units(int64_t count, const Meter& meter) {
  torch::nn::Sequential model{nullptr};
  meter("deferred_init", [&] { model = deferred_init([&] { return chain(count, 1); }); });
  meter("fully_shard", [&] { fully_shard(*model, options_for(kRanks)); });
}

void checkpoint(int64_t parameters, const Meter& meter) {
  torch::nn::Sequential model = chain(parameters / 10, 10);
  Options options = options_for(1);
  const std::shared_ptr<Communicator> world = make_cpu_communicator(rank_environment()).communicator;
  options.communicator = world;
  std::shared_ptr<ShardedModule> sharded;
  meter("fully_shard", [&] { sharded = fully_shard(*model, options); });
  torch::optim::AdamW optimizer(sharded->parameters(), 1e-3);
  meter("first step", [&] { model->forward(torch::ones({kWidth})).sum().backward(); });
  optimizer.step();
  const auto state = state_of(optimizer);
  const fs::path folder = kept_folder();
  meter("save_checkpoint", [&] { save_checkpoint(folder, {*sharded, *model, state.get()}, "{}", *world); });
  meter("load_checkpoint", [&] { load_checkpoint(folder, {*sharded, *model, state.get()}, *world); });
  meter("full_state_dict", [&] { full_state_dict(*sharded, *model); });
  meter("full_optimizer_state", [&] { full_optimizer_state(*sharded, *state); });
  world->barrier({"end"});
  if (world->rank() == 0 && std::getenv(kKeptFolder) == nullptr) fs::remove_all(folder);
}

}  // namespace

const std::vector<Job>& jobs() {
  static const std::vector<Job> all = {{"units of one parameter", "units", units_by_policy},
                                       {"units of six parameters", "units", units_of_six},
                                       {"units that stay gathered", "units", units_that_stay},
                                       {"units without a limit", "units", units_without_limit},
                                       {"automatic units", "parameters", automatic_units},
                                       {"one unit", "parameters", one_unit},
                                       {"units by hand", "units", units_by_hand},
                                       {"nested units", "units", nested_units},
                                       {"deferred units", "units", deferred_units},
                                       {"checkpoint", "parameters", checkpoint}};
  return all;
}

}  // namespace fsdp::growth
