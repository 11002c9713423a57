// Tests that sharded training equals single-process training on the concatenated batches, for every strategy, number of
// ranks, policy and use_orig_params, and that it gathers no more, and no more often, than it should.
#include <atomic>

#include "engine/engine.h"
#include "fsdp/fsdp.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::Block;
using testing::BlockImpl;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::TinyLM;
using testing::TinyLMImpl;

constexpr int kSteps = 10;
// The norm limit, which clips in most steps. With one rank nothing is clipped, because the norm is summed in a
// different order than torch's norm of norms, and all other results must be bit-equal.
double max_norm(int world_size) { return world_size == 1 ? 1e9 : 0.5; }

struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, torch::Tensor> first_gradients;
  std::map<std::string, torch::Tensor> weights;
};

torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(1e-2).weight_decay(0.1); }

// Returns each parameter once, under its first name (named_parameters() repeats shared ones).
std::vector<std::pair<std::string, torch::Tensor>> distinct_parameters(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, torch::Tensor>> result;
  for (const auto& entry : module.named_parameters()) {
    bool seen = std::any_of(result.begin(), result.end(),
                            [&](const auto& other) { return other.second.is_same(entry.value()); });
    if (!seen) result.emplace_back(entry.key(), entry.value());
  }
  return result;
}

// Trains the reference in one process, on the mean over all ranks' batches.
Trained train_alone(const TinyLMImpl::Config& config, at::ScalarType dtype, int world_size) {
  TinyLM model = make_tiny_lm(config, dtype);
  const auto parameters = distinct_parameters(*model);
  std::vector<torch::Tensor> leaves;
  for (const auto& [name, parameter] : parameters) leaves.push_back(parameter);
  torch::optim::AdamW optimizer(leaves, adamw());
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    torch::Tensor loss;
    for (int rank = 0; rank < world_size; ++rank) {
      torch::Tensor part = model->loss(testing::batch_of(rank, step)) / world_size;
      loss = loss.defined() ? loss + part : part;
    }
    loss.backward();
    if (step == 0) {
      for (const auto& [name, parameter] : parameters) {
        result.first_gradients[name] = testing::copy_on_host(parameter.grad());
      }
    }
    result.losses.push_back(loss.item<double>());
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(leaves, max_norm(world_size)));
    optimizer.step();
  }
  for (const auto& [name, parameter] : parameters) result.weights[name] = testing::copy_on_host(parameter);
  return result;
}

enum class Policy { kNone, kTransformer, kSize };

WrapPolicy wrap_policy(Policy policy) {
  switch (policy) {
    case Policy::kNone:
      return {};
    case Policy::kTransformer:
      return module_class_policy<BlockImpl>();
    case Policy::kSize:
      return size_policy(90);
  }
  return {};
}

// Assembles whole gradients from their shards on every rank.
std::map<std::string, torch::Tensor> assemble(ShardedModule& sharded) {
  std::map<std::string, torch::Tensor> whole;
  for (const auto& unit : sharded.engine().units()) {
    for (const auto& flat : unit->flat_parameters()) {
      bool orig = sharded.engine().options().use_orig_params;
      torch::Tensor mine = torch::zeros_like(flat->shard());
      for (int64_t i = 0; i < flat->layout().num_parameters(); ++i) {
        torch::Tensor gradient = orig ? flat->original_leaves()[i].grad() : flat->flat_leaf().grad();
        if (gradient.defined()) flat->slice_of(mine, i).copy_(orig ? gradient : flat->slice_of(gradient, i));
      }
      torch::Tensor full = mine;
      if (flat->position().factor > 1) {
        full = torch::empty({flat->layout().padded_numel()}, mine.options());
        unit->groups().shard->all_gather(full, mine, {"assemble " + unit->name(), 0, Pass::kUser})->wait();
      }
      for (int64_t i = 0; i < flat->layout().num_parameters(); ++i) {
        whole[flat->parameters()[i].fqn] = testing::copy_on_host(flat->view_in(full, i));
      }
    }
  }
  return whole;
}

double relative(const torch::Tensor& a, const torch::Tensor& b) {
  double scale = b.norm().item<double>();
  return (a - b).norm().item<double>() / (scale > 0 ? scale : 1);
}

void expect_equal(const std::map<std::string, torch::Tensor>& got, const std::map<std::string, torch::Tensor>& want,
                  double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, tensor] : want) {
    ASSERT_TRUE(got.count(name)) << what << " " << name;
    if (tolerance == 0) {
      EXPECT_TRUE(torch::equal(got.at(name), tensor)) << what << " " << name;
    } else {
      EXPECT_LE(relative(got.at(name), tensor), tolerance) << what << " " << name;
    }
  }
}

struct Case {
  int world_size;
  ShardingStrategy strategy;
  Policy policy;
  bool use_orig_params;
  at::ScalarType dtype;
  bool tied;
  int factor = 0;  // ranks of a shard group, in hybrid strategies

  int shards() const { return is_hybrid(strategy) ? factor : strategy == ShardingStrategy::kNoShard ? 1 : world_size; }
  int replicas() const { return world_size / shards(); }
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string policy[] = {"none", "transformer", "size"};
  std::string factor = c.factor > 0 ? c10::str("_by", c.factor) : "";
  return c10::str(to_string(c.strategy), factor, "_", c.world_size, "ranks_", policy[static_cast<int>(c.policy)], "_",
                  c.use_orig_params ? "orig" : "flat", "_", c10::toString(c.dtype), c.tied ? "_tied" : "");
}

class Training : public ::testing::TestWithParam<Case> {};

// Expects no more gathers and reductions than the algorithm needs, and at most the root and two units gathered at once.
void expect_economical(const Case& c, ShardedModule& sharded, const EngineStats& before, const EngineStats& after) {
  int64_t units = static_cast<int64_t>(sharded.engine().units().size());
  int64_t gathers = after.all_gathers - before.all_gathers;
  if (c.shards() == 1) {
    EXPECT_EQ(gathers, 0);
  } else {
    EXPECT_LE(gathers, reshards_after_forward(c.strategy) ? 2 * units - 1 : units);
    EXPECT_GE(gathers, units);
  }
  int64_t reductions = after.reduce_scatters + after.all_reduces - before.reduce_scatters - before.all_reduces;
  EXPECT_EQ(reductions, c.shards() > 1 && c.replicas() > 1 ? 2 * units : units);
  if (reshards_after_forward(c.strategy)) {
    EXPECT_LE(after.peak_gathered_units, 3);
  }
  EXPECT_EQ(after.gathered_bytes, 0);
  EXPECT_EQ(after.gradient_buffer_bytes, 0);
}

int64_t largest_allowed_bytes(ShardedModule& sharded) {
  int64_t root = 0;
  std::vector<int64_t> others;
  for (const auto& unit : sharded.engine().units()) {
    int64_t bytes = 0;
    for (const auto& flat : unit->flat_parameters()) {
      bytes += flat->layout().padded_numel() * c10::elementSize(flat->dtypes().compute);
    }
    unit->is_root() ? void(root += bytes) : others.push_back(bytes);
  }
  std::sort(others.rbegin(), others.rend());
  others.resize(2);
  return root + others[0] + others[1];
}

Trained train_sharded(const Case& c, const std::shared_ptr<Communicator>& communicator,
                      const TinyLMImpl::Config& config) {
  Options options;
  options.communicator = communicator;
  options.sharding_strategy = c.strategy;
  if (c.factor > 0) options.mesh = make_mesh(communicator, c.factor);
  options.use_orig_params = c.use_orig_params;
  options.auto_wrap_policy = wrap_policy(c.policy);
  FullyShardedDataParallel<TinyLM> model(make_tiny_lm(config, c.dtype), options);
  torch::optim::AdamW optimizer(model.parameters(), adamw());
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    EngineStats before = model.sharded().diagnostics().stats();
    model.zero_grad();
    torch::Tensor loss = model->loss(testing::batch_of(communicator->rank(), step));
    loss.backward();
    expect_economical(c, model.sharded(), before, model.sharded().diagnostics().stats());
    if (step == 0) result.first_gradients = assemble(model.sharded());
    result.norms.push_back(model.clip_grad_norm_(max_norm(c.world_size)).item<double>());
    optimizer.step();
    torch::Tensor mean = loss.detach().to(torch::kDouble).reshape({1});
    communicator->all_reduce(mean, mean, {1.0 / communicator->size()}, {"loss", 0, Pass::kUser})->wait();
    result.losses.push_back(mean.item<double>());
  }
  if (reshards_after_forward(c.strategy)) {
    EXPECT_LE(model.sharded().diagnostics().stats().peak_gathered_bytes, largest_allowed_bytes(model.sharded()));
  }
  model.sharded().for_each_full_parameter(
      [&](const std::string& fqn, const torch::Tensor& full) { result.weights[fqn] = testing::copy_on_host(full); });
  return result;
}

TEST_P(Training, EqualsSingleProcess) {
  const Case& c = GetParam();
  TinyLMImpl::Config config;
  config.tied = c.tied;
  Trained want = train_alone(config, c.dtype, c.world_size);
  bool bit_equal = c.world_size == 1;
  double tolerance = bit_equal ? 0 : c.dtype == at::kDouble ? 1e-11 : 1e-5;
  run_ranks(c.world_size, [&](std::shared_ptr<Communicator> communicator) {
    Trained got = train_sharded(c, communicator, config);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(got.losses[step], want.losses[step], std::abs(want.losses[step]) * tolerance) << "step " << step;
      EXPECT_NEAR(got.norms[step], want.norms[step], want.norms[step] * (c.dtype == at::kDouble ? 1e-11 : 1e-5));
    }
    expect_equal(got.first_gradients, want.first_gradients, tolerance, "gradient");
    expect_equal(got.weights, want.weights, tolerance, "weight");
  });
}

std::vector<Case> all_cases() {
  using enum ShardingStrategy;
  std::vector<Case> cases;
  for (int world_size : {1, 2, 3, 4}) {
    for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard}) {
      for (Policy policy : {Policy::kNone, Policy::kTransformer, Policy::kSize}) {
        for (bool orig : {true, false}) {
          for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
            cases.push_back({world_size, strategy, policy, orig, dtype, false});
          }
        }
      }
      cases.push_back({world_size, strategy, Policy::kTransformer, true, at::kDouble, true});
    }
  }
  for (auto [world_size, factor] : {std::pair{2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 2}, {4, 4}, {8, 2}, {8, 4}}) {
    for (ShardingStrategy strategy : {kHybridShard, kHybridShardZero2}) {
      for (bool orig : {true, false}) {
        cases.push_back({world_size, strategy, Policy::kTransformer, orig, at::kDouble, orig, factor});
        cases.push_back({world_size, strategy, Policy::kSize, orig, at::kFloat, false, factor});
      }
    }
  }
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard}) {
    cases.push_back({8, strategy, Policy::kTransformer, true, at::kDouble, true});
    cases.push_back({8, strategy, Policy::kSize, false, at::kFloat, false});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Training, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace fsdp
