// Tests optimizers that need whole parameters (Muon, Shampoo, Adafactor): run by the owners of sharded parameters, they
// equal the same optimizer on the whole model in one process, and the owners divide the state among themselves.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fully_shard.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::run_ranks;
using testing::seeded;
using testing::weights_of;
using torch::Tensor;
using enum ShardingStrategy;
using Tensors = std::map<std::string, Tensor>;

// The tolerance in fp64. Sums over ranks are added in a different order than in one process. The optimizers' roots and
// quotients magnify the difference, to 1e-13 at most.
constexpr double kTolerance = 1e-12;

// ---------------------------------------------------------------- the optimizers

// The state that an optimizer keeps for one parameter.
struct State {
  int steps = 0;
  std::vector<Tensor> tensors;
};

class WholeOptimizer {
 public:
  virtual ~WholeOptimizer() = default;
  // Updates one whole parameter in place.
  void update(const std::string& name, const Tensor& value, const Tensor& gradient) {
    const torch::NoGradGuard no_grad;
    State& state = states_[name];
    ++state.steps;
    step(value, gradient, state);
  }
  const std::map<std::string, State>& states() const { return states_; }

 private:
  virtual void step(Tensor value, const Tensor& gradient, State& state) const = 0;

  std::map<std::string, State> states_;
};

// Moves all singular values of a matrix towards 1. Jordan et al., "Muon: An optimizer for hidden layers in neural
// networks" (2024, kellerjordan.github.io/posts/muon), section "Definition", NewtonSchulz5.
Tensor orthogonalised(const Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);
  Tensor x = (tall ? matrix.t() : matrix) / (matrix.norm() + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const Tensor gram = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram.mm(gram)).mm(x);
  }
  return tall ? x.t() : x;
}

// Algorithm 2 of the same section for matrices; gradient descent with momentum for other parameters.
class Muon : public WholeOptimizer {
  void step(Tensor value, const Tensor& gradient, State& state) const override {
    if (state.steps == 1) state.tensors = {torch::zeros_like(gradient)};
    Tensor& momentum = state.tensors[0];
    momentum.mul_(0.9).add_(gradient);
    value.sub_(value.dim() == 2 ? orthogonalised(momentum) : momentum, 0.03);
  }
};

// Returns a symmetric positive definite matrix to the power of `exponent`, by its eigenvalues in fp64.
Tensor power_of(const Tensor& matrix, double exponent) {
  const auto [values, vectors] = at::linalg_eigh(matrix.to(torch::kDouble));
  return (vectors * values.pow(exponent)).mm(vectors.t()).to(matrix.scalar_type());
}

// Gupta, Koren and Singer, "Shampoo: Preconditioned Stochastic Tensor Optimization" (2018): section 1.1, Algorithm 1,
// for matrices. Any other parameter is a tensor of order k = 1, with one preconditioner to the power of -1/2 (section
// 4).
class Shampoo : public WholeOptimizer {
  void step(Tensor value, const Tensor& gradient, State& state) const override {
    const bool matrix = gradient.dim() == 2;
    const Tensor g = matrix ? gradient : gradient.reshape({-1, 1});
    if (state.steps == 1) {
      state.tensors = {1e-3 * torch::eye(g.size(0), g.options())};
      if (matrix) state.tensors.push_back(1e-3 * torch::eye(g.size(1), g.options()));
    }
    state.tensors[0].add_(g.mm(g.t()));
    Tensor direction = power_of(state.tensors[0], matrix ? -0.25 : -0.5).mm(g);
    if (matrix) {
      state.tensors[1].add_(g.t().mm(g));
      direction = direction.mm(power_of(state.tensors[1], -0.25));
    }
    value.sub_(direction.view_as(value), 0.05);
  }
};

double rms(const Tensor& tensor) { return tensor.square().mean().sqrt().item<double>(); }

// Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018), Algorithm 4 for matrices
// and Algorithm 5 for other parameters: second moments from moments of rows and columns (section 3), clipped updates
// (section 6), an increasing decay (section 7), and steps relative to the scale of the parameter (section 8). Constants
// are as in Algorithm 6, except for larger steps. Means replace the sums; the quotient below is the same.
class Adafactor : public WholeOptimizer {
  void step(Tensor value, const Tensor& gradient, State& state) const override {
    const bool matrix = gradient.dim() == 2;
    const Tensor square = gradient.square() + 1e-30;
    const double decay = 1 - std::pow(state.steps, -0.8);
    std::vector<Tensor> now = {square};
    if (matrix) now = {square.mean(1, /*keepdim=*/true), square.mean(0, /*keepdim=*/true)};
    std::vector<Tensor>& means = state.tensors;
    means.resize(now.size());
    for (size_t i = 0; i < now.size(); ++i) means[i] = state.steps == 1 ? now[i] : means[i].lerp(now[i], 1 - decay);
    const Tensor direction = gradient / (matrix ? means[0].mm(means[1]) / means[0].mean() : means[0]).sqrt();
    const double scale = std::max(1e-3, rms(value));
    value.sub_(direction / std::max(1.0, rms(direction)), scale * std::min(5e-2, 1 / std::sqrt(state.steps)));
  }
};

// ---------------------------------------------------------------- they do what their papers say

Tensor random(at::IntArrayRef sizes) {
  return seeded([&] { return torch::randn(sizes, torch::kDouble); });
}

// Returns the difference that an optimizer subtracts from a parameter.
Tensor update_of(WholeOptimizer&& optimizer, const Tensor& value, const std::vector<Tensor>& gradients) {
  const Tensor updated = value.clone();
  for (const Tensor& gradient : gradients) optimizer.update("p", updated, gradient);
  return value - updated;
}

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_LE((got - want).norm().item<double>(), tolerance * want.norm().item<double>()) << what;
}

class OnShape : public ::testing::TestWithParam<std::vector<int64_t>> {};
INSTANTIATE_TEST_SUITE_P(All, OnShape,
                         ::testing::Values(std::vector<int64_t>{3, 7}, std::vector<int64_t>{7, 3},
                                           std::vector<int64_t>{5, 5}, std::vector<int64_t>{1, 3}),
                         [](const auto& info) { return c10::Join("x", info.param); });

TEST_P(OnShape, MuonMakesStepsNearlyOrthogonal) {
  const Tensor gradient = random(GetParam());
  const auto [u, s, vt] = at::linalg_svd(gradient, /*full_matrices=*/false);
  const Tensor update = update_of(Muon(), torch::zeros_like(gradient), {gradient}) / 0.03;
  const Tensor singular_values = u.t().mm(update).mm(vt.t());
  EXPECT_TRUE(torch::allclose(singular_values, torch::eye(s.numel(), torch::kDouble), 0, 0.35)) << singular_values;
}

TEST_P(OnShape, ShampooWhitensTheFirstGradient) {
  const Tensor gradient = 1e3 * random(GetParam());  // makes the initial preconditioners negligible
  const auto [u, s, vt] = at::linalg_svd(gradient, /*full_matrices=*/false);
  expect_close(update_of(Shampoo(), torch::zeros_like(gradient), {gradient}) / 0.05, u.mm(vt), 1e-8, "matrix");
  const Tensor vector = gradient.flatten();
  expect_close(update_of(Shampoo(), torch::zeros_like(vector), {vector}) / 0.05, vector / vector.norm(), 1e-8,
               "vector");
}

TEST_P(OnShape, AdafactorDividesByFactoredMomentsAndClips) {
  const Tensor rank_1 = random({GetParam()[0], 1}).mm(random({1, GetParam()[1]}));  // its moments factor exactly
  for (const Tensor& gradient : {rank_1, rank_1.flatten()}) {
    const Tensor value = torch::full_like(gradient, 2.0);
    expect_close(update_of(Adafactor(), value, {gradient}), 2 * 5e-2 * gradient.sign(), 1e-12, "relative to the scale");
    // The second gradient is too large for the moments of both gradients: 10 / sqrt(0.43 + 0.57 * 100) = 1.3.
    expect_close(update_of(Adafactor(), torch::zeros_like(gradient), {gradient, 10 * gradient}),
                 2 * 1e-3 * 5e-2 * gradient.sign(), 1e-12, "clipped");
  }
  Adafactor optimizer;
  optimizer.update("p", torch::zeros_like(rank_1), rank_1);
  const std::vector<Tensor>& kept = optimizer.states().at("p").tensors;
  EXPECT_EQ(kept[0].numel() + kept[1].numel(), rank_1.size(0) + rank_1.size(1)) << "rows and columns, not elements";
}

// ---------------------------------------------------------------- over shards as in one process

constexpr int kSteps = 5;

// A model with prime widths, biases of 7, 3 and 1 elements, a scalar of the root, and a branch that only odd steps use.
struct PrimeNetImpl : torch::nn::Module {
  PrimeNetImpl() {
    wide = register_module("wide", torch::nn::Linear(5, 13));
    tall = register_module("tall", torch::nn::Linear(13, 7));
    small = register_module("small", torch::nn::Linear(7, 3));
    last = register_module("last", torch::nn::Linear(3, 1));
    branch = register_module("branch", torch::nn::Linear(7, 2));
    gain = register_parameter("gain", torch::tensor(1.5));
    to(torch::kDouble);
  }
  // Each rank fits a different function on different points, which are the same in all steps.
  Tensor loss(int rank, int step) {
    const Tensor x = torch::sin(torch::arange(55, torch::kDouble) * (0.7 + 0.2 * rank) + rank).view({11, 5});
    const Tensor hidden = torch::tanh(tall(torch::tanh(wide(x))));
    const Tensor fit = last(torch::tanh(gain * small(hidden))) - (x.sum(1, true) + 0.3 * rank).cos() - 2;
    const Tensor loss = fit.square().mean();
    return step % 2 ? loss + 0.1 * (branch(hidden) - 1).square().mean() : loss;
  }
  torch::nn::Linear wide{nullptr}, tall{nullptr}, small{nullptr}, last{nullptr}, branch{nullptr};
  Tensor gain;
};
TORCH_MODULE(PrimeNet);

PrimeNet make_net() {
  return seeded([] { return PrimeNet(); });
}

struct Kind {
  const char* name;
  std::unique_ptr<WholeOptimizer> (*make)();
};
template <typename Optimizer>
Kind kind_of(const char* name) {
  return {name, [] { return std::unique_ptr<WholeOptimizer>(std::make_unique<Optimizer>()); }};
}

struct Case {
  Kind optimizer;
  int world_size;
  int factor;  // ranks of a shard group
  ShardingStrategy strategy;
  bool orig;
};

std::vector<Case> all_cases() {
  struct Sharding {
    int world_size, factor;
    ShardingStrategy strategy;
  };
  std::vector<Sharding> shardings = {{2, 1, kHybridShard},
                                     {4, 2, kHybridShard},
                                     {4, 2, kHybridShardZero2},
                                     {8, 2, kHybridShard},
                                     {8, 4, kHybridShardZero2}};
  for (int ranks : {1, 2, 3, 4, 8}) {
    shardings.insert(shardings.end(), {{ranks, ranks, kFullShard}, {ranks, ranks, kShardGradOp}, {ranks, 1, kNoShard}});
  }
  std::vector<Case> cases;
  for (const Kind& kind : {kind_of<Muon>("Muon"), kind_of<Shampoo>("Shampoo"), kind_of<Adafactor>("Adafactor")}) {
    for (const auto& [world_size, factor, strategy] : shardings) {
      const bool both = world_size < 4, next = cases.size() % 2 == 0;  // with many ranks: only one of the two
      for (bool orig : {true, false}) {
        if (both || orig == next) cases.push_back({kind, world_size, factor, strategy, orig});
      }
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c10::str(c.optimizer.name, "_", to_string(c.strategy), "_", c.world_size, "ranks_by_", c.factor,
                  c.orig ? "_orig" : "_flat");
}

Options options_for(const Case& c, const std::shared_ptr<Communicator>& world) {
  Options options;
  options.communicator = world;
  options.sharding_strategy = c.strategy;
  options.use_orig_params = c.orig;
  options.auto_wrap_policy = size_policy(50);
  if (is_hybrid(c.strategy)) options.mesh = make_mesh(world, c.factor);
  return options;
}

struct Training {
  Tensor losses;  // by step; in one process by step and rank
  Tensors weights;
};

// Trains in one process. With flat leaves, unused parameters of a unit have a gradient of zeros.
Training train_alone(WholeOptimizer& optimizer, int world_size, bool orig) {
  PrimeNet net = make_net();
  Training training{torch::zeros({kSteps, world_size}, torch::kDouble), {}};
  for (int step = 0; step < kSteps; ++step) {
    net->zero_grad();
    for (int rank = 0; rank < world_size; ++rank) {
      const Tensor loss = net->loss(rank, step);
      (loss / world_size).backward();
      training.losses[step][rank] = loss.item<double>();
    }
    for (const auto& item : net->named_parameters()) {
      Tensor gradient = item.value().grad();
      if (!gradient.defined() && !orig) gradient = torch::zeros_like(item.value());
      if (gradient.defined()) optimizer.update(item.key(), item.value(), gradient);
    }
  }
  training.weights = weights_of(*net);
  return training;
}

Training train_sharded(WholeOptimizer& optimizer, PrimeNet& net, ShardedModule& sharded, int rank) {
  Training training{torch::zeros({kSteps}, torch::kDouble), {}};
  for (int step = 0; step < kSteps; ++step) {
    sharded.zero_grad();
    const Tensor loss = net->loss(rank, step);
    loss.backward();
    training.losses[step] = loss.item<double>();
    if (step % 2) sharded.unshard();  // units gathered before the update must not be used after it
    sharded.update_whole_parameters([&](const WholeParameter& p) { optimizer.update(p.fqn, p.value, p.gradient); });
  }
  training.weights = weights_of(sharded);
  return training;
}

// Checks that the training in one process is a meaningful reference: every parameter moves, and the loss falls.
void expect_learns(const Training& training) {
  const Tensors before = weights_of(*make_net());
  EXPECT_EQ(training.weights.size(), 11U);
  for (const auto& [name, weight] : training.weights) {
    EXPECT_GT((weight - before.at(name)).norm().item<double>(), 1e-3 * before.at(name).norm().item<double>()) << name;
  }
  const Tensor means = training.losses.mean(1);  // even steps do not use the branch
  EXPECT_LT(means[2].item<double>(), 0.95 * means[0].item<double>()) << means;
  EXPECT_LT(means[4].item<double>(), 0.95 * means[2].item<double>()) << means;
}

// Records, for each shard group, which rank keeps the state of which parameter, and the number of ranks that hold
// elements of the smallest parameter.
class Census {
 public:
  explicit Census(const Case& c) : factor_(c.factor), groups_(c.world_size / c.factor) {}

  void add(int rank, const WholeOptimizer& optimizer, const ShardedModule& sharded) {
    std::lock_guard lock(mutex_);
    Group& group = groups_[rank / factor_];
    for (const auto& [name, state] : optimizer.states()) group.states[name].emplace_back(rank, state);
    for (const ShardSlice& slice : sharded.shard_slices()) {
      group.holders_of_gain += slice.fqn == "gain" && slice.begin < slice.end;
    }
  }

  // Expects each state on exactly one rank of every group, some states on every rank, and the values of one process.
  void expect_spread(const std::map<std::string, State>& alone) const {
    for (const Group& group : groups_) {
      EXPECT_EQ(group.states.size(), alone.size());
      EXPECT_EQ(group.holders_of_gain, 1);
      std::set<int> owners;
      for (const auto& [name, copies] : group.states) {
        ASSERT_EQ(copies.size(), 1U) << "ranks with a state of " << name;
        owners.insert(copies[0].first);
        expect_same_state(copies[0].second, alone.at(name), name);
      }
      EXPECT_EQ(owners.size(), static_cast<size_t>(factor_));
    }
  }

 private:
  struct Group {
    std::map<std::string, std::vector<std::pair<int, State>>> states;
    int holders_of_gain = 0;
  };

  static void expect_same_state(const State& got, const State& want, const std::string& name) {
    EXPECT_EQ(got.steps, want.steps) << name;
    ASSERT_EQ(got.tensors.size(), want.tensors.size()) << name;
    for (size_t i = 0; i < want.tensors.size(); ++i) {
      expect_close(got.tensors[i], want.tensors[i], kTolerance, "state of " + name);
    }
  }

  int factor_;
  std::mutex mutex_;
  std::vector<Group> groups_;
};

class WholeOptimizers : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, WholeOptimizers, ::testing::ValuesIn(all_cases()), case_name);

TEST_P(WholeOptimizers, OverShardsEqualOneProcess) {
  const Case& c = GetParam();
  const auto alone = c.optimizer.make();
  const Training want = train_alone(*alone, c.world_size, c.orig);
  expect_learns(want);
  Census census(c);
  run_ranks(c.world_size, [&](const std::shared_ptr<Communicator>& world) {
    const auto optimizer = c.optimizer.make();
    PrimeNet net = make_net();
    auto sharded = fully_shard(*net, options_for(c, world));
    const Training got = train_sharded(*optimizer, net, *sharded, world->rank());
    expect_close(got.losses, want.losses.select(1, world->rank()), kTolerance, "losses");
    ASSERT_EQ(got.weights.size(), want.weights.size());
    for (const auto& [name, weight] : want.weights) expect_close(got.weights.at(name), weight, kTolerance, name);
    EXPECT_EQ(sharded->diagnostics().stats().gathered_bytes, 0);
    census.add(world->rank(), *optimizer, *sharded);
  });
  census.expect_spread(alone->states());
}

}  // namespace
}  // namespace fsdp
