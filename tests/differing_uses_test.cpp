// Ranks use different parameters of the same units, and the parameters change from step to step. A rank's uses
// determine neither when units are gathered and released nor the order in which gradients are reduced.
#include <gmock/gmock.h>

#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using testing::expect_as_in_one_process;
using testing::RankStep;
using testing::ShardingCase;
using enum ShardingStrategy;

// Multiplies x by w and calls the child, if nested. Some ranks then add b or scale by c in some steps; the child gets
// these two flags swapped.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool nested = false) {
    const auto values = torch::TensorOptions(at::kDouble);
    w = register_parameter("w", testing::numbers({4, 4}).to(values));
    b = register_parameter("b", testing::numbers({3, 4}).to(values) * 0.3);
    c = register_parameter("c", testing::numbers({4}).to(values));
    if (nested) child = register_module("child", std::make_shared<BlockImpl>());
  }
  torch::Tensor forward(torch::Tensor x, bool uses_b, bool uses_c) {
    x = torch::tanh(torch::matmul(x, w));
    if (child) x = child->forward(x, uses_c, uses_b);
    if (uses_b) x = x + b;
    x = x * 1.25;
    return uses_c ? x * c.sigmoid() : x;
  }
  torch::Tensor w, b, c;
  std::shared_ptr<BlockImpl> child;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool nested) {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module(c10::str("block", i), std::make_shared<BlockImpl>(nested)));
    }
    scale = register_parameter("scale", torch::ones({4}, at::kDouble));
    offset = register_parameter("offset", torch::zeros({4}, at::kDouble));
  }
  std::vector<std::shared_ptr<BlockImpl>> blocks;
  torch::Tensor scale, offset;
};
TORCH_MODULE(Net);

class DifferingUses : public ::testing::TestWithParam<ShardingCase> {};

// Enough passes for every rank to use parameters that it left out before, and to leave out parameters that it used.
constexpr int kTimes = 4;

void forward_and_backward(NetImpl& net, const RankStep& at, int time) {
  torch::Tensor x = at.x(time) * net.scale;
  for (size_t i = 0; i < net.blocks.size(); ++i) {
    const int turn = at.rank + at.step + time + static_cast<int>(i);
    x = net.blocks[i]->forward(x, turn % 2 == 0, turn % 3 == 0);
    if (turn % 2 == 1) x = x + net.offset;
  }
  at.see(x);
  at.backward(x.pow(2).mean());
}

TEST_P(DifferingUses, OtherParametersFromStepToStep) {
  for (bool nested : {false, true}) {
    SCOPED_TRACE(nested ? "nested" : "flat");
    expect_as_in_one_process(
        GetParam(), [nested] { return Net(nested); },
        [](NetImpl& net, const RankStep& at) {
          for (int time = 0; time < kTimes; ++time) {
            forward_and_backward(net, at, time);
          }
        });
  }
}

// Parameters that a loss reads directly come first in backward, before the modules that use them.
TEST_P(DifferingUses, ParametersThatOnlySomeRanksAddToTheLoss) {
  expect_as_in_one_process(
      GetParam(), [] { return Net(true); },
      [](NetImpl& net, const RankStep& at) {
        for (int time = 0; time < kTimes; ++time) {
          torch::Tensor x = at.x(time) * net.scale;
          torch::Tensor left_out = torch::zeros({}, at::kDouble);
          for (size_t i = 0; i < net.blocks.size(); ++i) {
            const bool uses = (at.rank + at.step + time + i) % 2 == 0;
            x = net.blocks[i]->forward(x, uses, uses);
            if (!uses) left_out = left_out + 0 * net.blocks[i]->b.sum() + 0 * net.blocks[i]->child->c.sum();
          }
          at.see(x);
          at.backward(x.pow(2).mean() + left_out);
        }
      });
}

// A unit that has all its gradients on one rank but not on another stays on both until the next unit is used.
TEST_P(DifferingUses, InSeveralGraphsOfOneBackward) {
  expect_as_in_one_process(
      GetParam(), [] { return Net(false); },
      [](NetImpl& net, const RankStep& at) {
        torch::Tensor loss;
        for (int time = 0; time < 3; ++time) {
          torch::Tensor x = at.x(time) * net.scale;
          for (auto& block : net.blocks) x = block->forward(x, at.rank % 2 == 1, at.rank == 0 && at.step == 1);
          loss = loss.defined() ? loss + x.pow(2).mean() : x.pow(2).mean();
        }
        at.see(loss);
        at.backward(loss);
      });
}

// Gradients of passes that do not communicate also differ between ranks.
TEST_P(DifferingUses, AcrossAccumulatedPasses) {
  expect_as_in_one_process(
      GetParam(), [] { return Net(false); },
      [](NetImpl& net, const RankStep& at) {
        for (int time = 0; time < kTimes; ++time) {
          const auto pass = [&] { forward_and_backward(net, at, time); };
          if (at.sharded && time + 1 < kTimes) {
            at.sharded->set_requires_gradient_sync(false);
            pass();
            at.sharded->set_requires_gradient_sync(true);
          } else {
            pass();
          }
        }
      });
}

// Shards a net over the ranks, with each of its modules as a unit.
std::shared_ptr<ShardedModule> shard_each_module(Net& net, const std::shared_ptr<Communicator>& world) {
  Options options;
  options.communicator = world;
  options.auto_wrap_policy = testing::every_module();
  return fully_shard(*net, options);
}

// autograd::grad reduces nothing, even next to a backward that does.
TEST(ReductionsOfAutogradGrad, AreNone) {
  testing::run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    Net net(false);
    auto sharded = shard_each_module(net, world);
    const auto loss = [&](const torch::Tensor& x) {
      return net->blocks[0]->forward(x * net->scale, false, false).pow(2).sum();
    };
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor x = torch::ones({3, 4}, torch::dtype(at::kDouble).requires_grad(true));
      const int64_t before = sharded->diagnostics().stats().reduce_scatters;
      torch::autograd::grad({loss(x)}, {x});
      EXPECT_EQ(sharded->diagnostics().stats().reduce_scatters, before);
      loss(x).backward();
      EXPECT_EQ(sharded->diagnostics().stats().reduce_scatters, before + 2) << "the root and the block";
    }
  });
}

// A case that cannot work is refused in the first step, on both ranks, with the units, the ranks and the parameter.
TEST(AUnitThatARankLeavesOut, IsNamed) {
  std::vector<std::string> errors(2);
  testing::run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    Net net(false);
    auto sharded = shard_each_module(net, world);
    errors[world->rank()] = testing::error_of([&] {
      torch::Tensor x = torch::ones({3, 4}, at::kDouble) * net->scale;
      for (size_t i = 0; i < net->blocks.size(); ++i) {
        if (i != 1 || world->rank() == 0) x = net->blocks[i]->forward(x, false, false);
      }
    });
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::AllOf(::testing::HasSubstr("rank 0 issues all-gather of 'block1'"),
                                        ::testing::HasSubstr("rank 1 issues all-gather of 'block2'")));
  }
  EXPECT_THAT(errors[0], ::testing::HasSubstr("uses parameter 'block1.w'"));
  EXPECT_THAT(errors[1], ::testing::HasSubstr("uses parameter 'block2.w'"));
}

std::vector<ShardingCase> cases() {
  std::vector<ShardingCase> cases;
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard}) {
    for (int world_size : {2, 3, 4}) {
      cases.push_back({world_size, strategy, world_size != 3, false});
    }
  }
  cases.push_back({4, kHybridShard, true, false});
  cases.push_back({4, kHybridShardZero2, false, false});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, DifferingUses, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return testing::name_of(info.param); });

}  // namespace
}  // namespace fsdp
