// Failures in forward or backward and the clean step after them, and the errors of ranks whose behavior differs.
#include "engine/engine.h"
#include "fsdp/activation_checkpoint.h"
#include "support/nets/branched_net.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using testing::BranchedNet;
using testing::BranchedNetImpl;
using testing::expect_as_in_one_process;
using testing::expect_error;
using testing::make_branched_net;
using testing::mean_square;
using testing::RankStep;
using testing::ShardingCase;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

torch::Tensor fail_in_backward(const torch::Tensor& x) {
  torch::Tensor y = x.view_as(x);
  y.register_hook([](torch::Tensor) -> torch::Tensor { throw std::runtime_error("hook"); });
  return y;
}

// The way in which the user recovers from an error.
enum class Recovery { kReset, kZeroGrad, kZeroGradOnModule };
void recover(Recovery recovery, BranchedNetImpl& net, ShardedModule& sharded) {
  switch (recovery) {
    case Recovery::kReset:
      sharded.reset();
      EXPECT_EQ(sharded.diagnostics().stats().gathered_units, 0);
      EXPECT_EQ(sharded.diagnostics().stats().gradient_buffer_bytes, 0);
      sharded.zero_grad();
      break;
    case Recovery::kZeroGrad:
      sharded.zero_grad();
      break;
    case Recovery::kZeroGradOnModule:
      net.zero_grad();
      break;
  }
}

using Failure = std::function<void(BranchedNetImpl&, const RankStep&)>;

class AutogradFailures : public ::testing::TestWithParam<ShardingCase> {
 protected:
  // Lets all ranks fail twice in each step. The pass after that must give the same results as without the failures.
  void expect_clean_step_after(const Failure& fail) {
    for (Recovery recovery : {Recovery::kReset, Recovery::kZeroGrad, Recovery::kZeroGradOnModule}) {
      SCOPED_TRACE(static_cast<int>(recovery));
      expect_as_in_one_process(GetParam(), make_branched_net, [&](BranchedNetImpl& net, RankStep rank) {
        for (int i = 0; rank.sharded && i < 2; ++i) {
          fail(net, rank);
          recover(recovery, net, *rank.sharded);
        }
        rank.backward(net.loss(rank.x()));
      });
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, AutogradFailures, ::testing::ValuesIn(testing::sharding_cases()),
                         [](const auto& info) { return testing::name_of(info.param); });

// ---------------------------------------------------------------- exceptions

TEST_P(AutogradFailures, InForward) {
  expect_clean_step_after([](BranchedNetImpl& net, const RankStep& rank) {
    torch::Tensor h = net.encode(rank.x(1));
    expect_error([&] { net.b(torch::cat({h, h}, 1)); }, {"shapes cannot be multiplied"});
  });
}

// When the hook throws, c is reduced or being reduced, b is captured, and a is not captured.
TEST_P(AutogradFailures, InBackward) {
  expect_clean_step_after([](BranchedNetImpl& net, const RankStep& rank) {
    torch::Tensor loss = mean_square(net.decode(fail_in_backward(net.encode(rank.x(1)))));
    expect_error([&] { loss.backward(); }, {"hook"});
  });
}

// When the hook throws, all units except a are reduced.
TEST_P(AutogradFailures, AtTheEndOfBackward) {
  expect_clean_step_after([](BranchedNetImpl& net, const RankStep& rank) {
    torch::Tensor h = torch::tanh(fail_in_backward(net.a(rank.x(1)))) * net.scale;
    expect_error([&] { (mean_square(net.decode(h)) + mean_square(net.side(h))).backward(); }, {"hook"});
  });
}

TEST_P(AutogradFailures, InARecomputedRegion) {
  expect_clean_step_after([](BranchedNetImpl& net, const RankStep& rank) {
    auto region = [&, runs = 0](const torch::Tensor& h) mutable {
      TORCH_CHECK(++runs == 1, "recomputation fails");
      return net.b(h);
    };
    torch::Tensor h = activation_checkpoint(region, net.encode(rank.x(1)));
    expect_error([&] { mean_square(net.c(h)).backward(); }, {"recomputation fails"});
    auto throws = [&](const torch::Tensor& h) { return torch::cat({net.b(h), h}, 2); };
    expect_error([&] { activation_checkpoint(throws, net.encode(rank.x(1))); }, {"Dimension out of range"});
  });
}

// Gradients accumulated before are lost too, and an error reports this.
TEST_P(AutogradFailures, InAnAccumulatedBackward) {
  expect_clean_step_after([](BranchedNetImpl& net, const RankStep& rank) {
    {
      auto no_sync = rank.sharded->no_sync();
      net.loss(rank.x(1)).backward();
      torch::Tensor loss = mean_square(net.decode(fail_in_backward(net.encode(rank.x(2)))));
      expect_error([&] { loss.backward(); }, {"hook"});
    }
    expect_error([&] { net.loss(rank.x(3)).backward(); },
                 {"a backward threw while gradients of several passes were being accumulated",
                  "Call ShardedModule::zero_grad (or reset)"});
    rank.sharded->zero_grad();
  });
}

TEST_P(AutogradFailures, CreateGraphIntoGrad) {
  expect_clean_step_after([](BranchedNetImpl& net, const RankStep& rank) {
    expect_error([&] { net.loss(rank.x(1)).backward({}, c10::nullopt, /*create_graph=*/true); },
                 {"unit 'c", "parameter 'c.", "create_graph=true", "use torch::autograd::grad"});
  });
}

// A pass inside backward fails, and the surrounding function continues without it.
struct Forgiving : torch::autograd::Function<Forgiving> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& h, BranchedNetImpl* net, double share) {
    context->save_for_backward({h});
    context->saved_data["net"] = reinterpret_cast<int64_t>(net);
    context->saved_data["share"] = share;
    return h.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* net = reinterpret_cast<BranchedNetImpl*>(context->saved_data["net"].toInt());
    torch::AutoGradMode enable(true);
    torch::Tensor h = context->get_saved_variables()[0].detach().requires_grad_();
    torch::Tensor y = mean_square(net->side(fail_in_backward(torch::tanh(net->b(h)))));
    y = y * context->saved_data["share"].toDouble();
    expect_error([&] { y.backward(); }, {"hook"});
    expect_error([&] { torch::autograd::grad({mean_square(net->b(fail_in_backward(h)))}, {h}); }, {"hook"});
    return {gradients[0], torch::Tensor(), torch::Tensor()};
  }
};

TEST_P(AutogradFailures, InAPassInsideBackwardThatIsCaught) {
  expect_as_in_one_process(GetParam(), make_branched_net, [](BranchedNetImpl& net, RankStep rank) {
    rank.backward(mean_square(net.decode(Forgiving::apply(net.encode(rank.x()), &net, rank.share))));
  });
}

// ---------------------------------------------------------------- shards written by the user

void scale_weights(BranchedNetImpl& net, const RankStep& rank) {
  torch::NoGradGuard no_grad;
  if (!rank.sharded) {
    for (torch::Tensor& parameter : net.parameters()) parameter.mul_(0.75);
    return;
  }
  for (ShardSlice& slice : rank.sharded->shard_slices()) slice.data.mul_(0.75);
}

TEST_P(AutogradFailures, WritesToShardsAreSeenByTheNextForward) {
  expect_as_in_one_process(GetParam(), make_branched_net, [](BranchedNetImpl& net, RankStep rank) {
    if (rank.sharded) {
      (void)net.forward(rank.x(1));  // leaves units gathered with some strategies
    }
    if (rank.sharded || rank.rank == 0) scale_weights(net, rank);
    rank.see(net.forward(rank.x(1)));
    rank.backward(net.loss(rank.x()));
  });
}

TEST_P(AutogradFailures, WritesToShardsBetweenForwardAndBackward) {
  expect_clean_step_after([](BranchedNetImpl& net, const RankStep& rank) {
    torch::NoGradGuard no_grad;
    torch::Tensor loss;
    {
      torch::AutoGradMode enable(true);
      loss = net.loss(rank.x(1));
    }
    for (ShardSlice& slice : rank.sharded->shard_slices()) slice.data.add_(0);
    expect_error([&] { loss.backward(); }, {c10::str("rank ", rank.rank, ": unit 'c").c_str(),
                                            "its shards were written between forward and backward",
                                            "Run backward before the step, or run forward again"});
  });
}

// ---------------------------------------------------------------- ranks that do different things

// The part that the last rank's loss leaves out and the other ranks' losses use.
enum class LeftOut { kOutput, kInput, kWeights, kRootParameter };
const char* to_string(LeftOut part) {
  const char* names[] = {"output", "input", "weights", "root"};
  return names[static_cast<int>(part)];
}

torch::Tensor loss_without(LeftOut part, BranchedNetImpl& net, const torch::Tensor& x, bool leave_out) {
  auto used = [&](LeftOut what, const torch::Tensor& t) { return leave_out && part == what ? t.detach() : t; };
  torch::Tensor h = torch::tanh(net.a(x)) * used(LeftOut::kRootParameter, net.scale);
  torch::Tensor y = torch::linear(used(LeftOut::kInput, h), used(LeftOut::kWeights, net.b->weight),
                                  used(LeftOut::kWeights, net.b->bias));
  torch::Tensor side = net.side(h);
  torch::Tensor loss = mean_square(net.c(torch::tanh(y)));
  return leave_out && part == LeftOut::kOutput ? loss : loss + mean_square(side);
}

using UnevenCase = std::tuple<ShardingCase, LeftOut>;
class UnevenRanks : public ::testing::TestWithParam<UnevenCase> {
 protected:
  // Accumulates the gradients of three passes and descends. The last rank leaves a part out in the second pass. Returns
  // the error that each rank has seen after the first pass, or an empty string.
  std::vector<std::string> errors() {
    const ShardingCase sharding = std::get<0>(GetParam());
    const LeftOut part = std::get<1>(GetParam());
    std::vector<std::string> errors(sharding.world_size);
    const auto want = weights_in_one_process();
    auto body = [&](const std::shared_ptr<Communicator>& world) {
      BranchedNet net = testing::seeded(make_branched_net);
      auto sharded = testing::shard(*net, sharding, testing::options_of(sharding, world));
      const torch::Tensor x = torch::full({3, 4}, world->rank() + 1.0, at::kDouble);
      loss_without(part, *net, x, false).backward();
      try {
        loss_without(part, *net, x, world->rank() == world->size() - 1).backward();
        loss_without(part, *net, x, false).backward();
        testing::descend(sharded->parameters());
        for (const auto& [name, weight] : testing::weights_of(*sharded)) {
          EXPECT_TRUE(torch::allclose(weight, want.at(name), 1e-12, 1e-12)) << name << " without an error";
        }
      } catch (const c10::Error& error) {
        errors[world->rank()] = error.what_without_backtrace();
      }
    };
    testing::run_ranks(sharding.world_size, body, {std::chrono::seconds(5)});
    return errors;
  }

  std::map<std::string, torch::Tensor> weights_in_one_process() {
    const int ranks = std::get<0>(GetParam()).world_size;
    BranchedNet net = testing::seeded(make_branched_net);
    for (int pass = 0; pass < 3; ++pass) {
      for (int rank = 0; rank < ranks; ++rank) {
        const torch::Tensor x = torch::full({3, 4}, rank + 1.0, at::kDouble);
        (loss_without(std::get<1>(GetParam()), *net, x, pass == 1 && rank == ranks - 1) / ranks).backward();
      }
    }
    testing::descend(net->parameters());
    return testing::weights_of(*net);
  }
};
// Excludes automatic units: they join parts that are left out with parts that are not, so the ranks need not differ.
std::vector<ShardingCase> cases_of_several_ranks() {
  std::vector<ShardingCase> cases = testing::sharding_cases();
  std::erase_if(cases, [](const ShardingCase& sharding) { return sharding.world_size == 1 || sharding.automatic; });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, UnevenRanks,
                         ::testing::Combine(::testing::ValuesIn(cases_of_several_ranks()),
                                            ::testing::Values(LeftOut::kOutput, LeftOut::kInput, LeftOut::kWeights,
                                                              LeftOut::kRootParameter)),
                         [](const auto& info) {
                           return testing::name_of(std::get<0>(info.param)) + "_" + to_string(std::get<1>(info.param));
                         });

// No rank hangs or continues with wrong numbers. The result is right if all ranks first use the same units in the same
// order, as they do if only single parameters are left out. Otherwise each rank gets an error that names ranks and
// units, and at least one error says what to do.
TEST_P(UnevenRanks, AreRightOrGetAnErrorWithAdvice) {
  std::string all;
  const std::vector<std::string> seen = errors();
  const bool right = seen == std::vector<std::string>(seen.size());
  if (std::get<1>(GetParam()) == LeftOut::kRootParameter && !std::get<0>(GetParam()).strict) {
    EXPECT_TRUE(right) << c10::Join("\n", seen);
  }
  if (right) return;
  for (const std::string& error : seen) {
    EXPECT_THAT(error, ::testing::ContainsRegex("rank [0-9].*'(a|b|c|side|root)'"));
    all += error + "\n";
  }
  EXPECT_THAT(all, ::testing::ContainsRegex("rank [0-9] issues .* while rank [0-9] issues "));
  EXPECT_THAT(all, ::testing::HasSubstr("add their outputs, multiplied by zero, to that loss"));
}

}  // namespace
}  // namespace fsdp
