// Optimizers that were made before units are cut from the order in which parameters are used.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <set>

#include "engine/engine.h"
#include "support/nets/branched_net.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/automatic_units.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::automatic;
using testing::BranchedNet;
using testing::expect_error;
using testing::expect_same;
using testing::make_tiny_lm;
using testing::names_of;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;

torch::Tensor input() { return torch::linspace(-1, 1, 12, at::kDouble).view({3, 4}); }

using Step = std::function<void()>;
using MakeOptimizer = std::function<Step(const std::vector<torch::Tensor>& parameters)>;

template <typename Optimizer>
Step step_of(const std::shared_ptr<Optimizer>& optimizer) {
  return [optimizer] { optimizer->step(); };
}

// An optimizer with state per tensor, all of it allocated in the constructor.
class OwnOptimizer {
 public:
  explicit OwnOptimizer(const std::vector<torch::Tensor>& parameters) : parameters_(parameters) {
    for (const torch::Tensor& p : parameters) {
      state_[p.unsafeGetTensorImpl()] = {torch::zeros_like(p), torch::ones_like(p.data(), at::MemoryFormat::Contiguous),
                                         p.new_full(p.sizes(), 0.5), torch::empty_like(p.detach()), p.detach().clone()};
    }
  }
  void step() {
    torch::NoGradGuard no_grad;
    for (torch::Tensor& p : parameters_) {
      auto& [velocity, scale, sum, scratch, average] = state_.at(p.unsafeGetTensorImpl());
      if (p.grad().defined()) {
        velocity.mul_(0.9).add_(p.grad());
        sum.addcmul_(p.grad(), p.grad());
        scratch.copy_(velocity).div_(sum.sqrt());
        p.add_(scratch * scale, -0.01);
      }
      average.lerp_(p, 0.5);
      p.copy_(average);
      scale.mul_(0.9);
    }
  }

 private:
  struct State {
    torch::Tensor velocity, scale, sum, scratch, average;
  };
  std::vector<torch::Tensor> parameters_;
  std::map<c10::TensorImpl*, State> state_;
};

const std::vector<std::pair<std::string, MakeOptimizer>> kOptimizers = {
    {"AdamW",
     [](const auto& p) { return step_of(std::make_shared<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.01))); }},
    {"Adam",
     [](const auto& p) {
       return step_of(std::make_shared<torch::optim::Adam>(p, torch::optim::AdamOptions(0.01).amsgrad(true)));
     }},
    {"SGD",
     [](const auto& p) {
       return step_of(std::make_shared<torch::optim::SGD>(p, torch::optim::SGDOptions(0.01).momentum(0.9)));
     }},
    {"RMSprop",
     [](const auto& p) {
       return step_of(std::make_shared<torch::optim::RMSprop>(p, torch::optim::RMSpropOptions(0.01).centered(true)));
     }},
    {"Adagrad",
     [](const auto& p) {
       return step_of(std::make_shared<torch::optim::Adagrad>(
           p, torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.3)));
     }},
    {"own", [](const auto& p) { return step_of(std::make_shared<OwnOptimizer>(p)); }}};

// An optimizer made before the first forward keeps working after the cut: the leaves are the same objects with other
// parts.
void expect_as_in_one_process(int ranks, const MakeOptimizer& make_optimizer) {
  auto make = [] { return testing::seeded([] { return BranchedNet(); }); };
  auto x = [](int rank, int step) { return torch::sin(input() * 7 + rank + 3 * step); };
  BranchedNet plain = make();
  Step reference = make_optimizer(plain->parameters());
  for (int step = 0; step < 4; ++step) {
    plain->zero_grad();
    for (int rank = 0; rank < ranks; ++rank) (plain->loss(x(rank, step)) / ranks).backward();
    reference();
  }
  run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    BranchedNet net = make();
    auto sharded = fully_shard(net, automatic(communicator));
    auto identities = [&] {
      std::set<c10::TensorImpl*> result;
      for (auto& leaf : sharded->parameters()) result.insert(leaf.unsafeGetTensorImpl());
      return result;
    };
    const auto before = identities();
    Step optimizer = make_optimizer(sharded->parameters());
    for (int step = 0; step < 4; ++step) {
      sharded->zero_grad();
      net->loss(x(communicator->rank(), step)).backward();
      optimizer();
    }
    EXPECT_EQ(identities(), before);
    EXPECT_EQ(names_of(*sharded).size(), 4);
    auto got = weights_of(*sharded), want = weights_of(*plain);
    ASSERT_EQ(got.size(), want.size());
    for (auto& [name, weight] : want) EXPECT_TRUE(torch::allclose(got.at(name), weight, 1e-9, 1e-9)) << name;
  });
}

TEST(AutoUnits, OptimizersMadeBeforeTheFirstForwardGoOn) {
  for (const auto& [name, make_optimizer] : kOptimizers) {
    SCOPED_TRACE(name);
    for (int ranks : {1, 2, 3, 4, 8}) expect_as_in_one_process(ranks, make_optimizer);
  }
}

// State that already has values would have to be gathered, so it is an error.
TEST(AutoUnits, StateWrittenBeforeTheCutIsAnError) {
  run_ranks(3, [](std::shared_ptr<Communicator> communicator) {
    BranchedNet net;
    auto sharded = fully_shard(net, automatic(communicator));
    torch::Tensor state = torch::zeros_like(sharded->parameters().front());
    state.add_(1);
    torch::Tensor loss = net->loss(input());
    expect_error([&] { loss.backward(); }, {"unit '", "aten::zeros_like", "written to before units were cut",
                                            "ShardedModule::cut_units", "AutoUnits::order"});
    state.reset();
    sharded->reset();
    net->loss(input()).backward();
  });
}

// The cut moves values in the dtype of the shards, not in the compute dtype. Frozen parameters and those in full
// precision stay in separate FlatParameters.
TEST(AutoUnits, ShardsKeepTheirPrecision) {
  for (int ranks : {1, 3}) {
    run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
      TinyLM model = make_tiny_lm({}, at::kDouble);
      for (auto& parameter : model->blocks[1]->parameters()) parameter.set_requires_grad(false);
      auto want = weights_of(*model);
      Options options = automatic(communicator, 1 << 20);
      options.param_dtype = at::kBFloat16;
      options.full_precision_classes = {"LayerNorm"};
      auto sharded = fully_shard(model, options);
      EXPECT_TRUE(model->loss(testing::batch_of(communicator->rank(), 0)).isfinite().item<bool>());
      sharded->cut_units();
      ASSERT_EQ(sharded->engine().units().size(), 1);
      EXPECT_EQ(sharded->engine().units().front()->flat_parameters().size(), 4);
      expect_same(weights_of(*sharded), want);
    });
  }
}

}  // namespace
}  // namespace fsdp
