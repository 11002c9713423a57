// A sharded model allows everything that autograd allows with a plain model: for every strategy, each test equals the
// same steps in a single process over all ranks' batches. Failures are tested in autograd_failures_test.cpp.
#include <thread>

#include "engine/engine.h"
#include "fsdp/activation_checkpoint.h"
#include "support/nets/branched_net.h"
#include "support/nets/tied_linear.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using testing::BranchedNet;
using testing::BranchedNetImpl;
using testing::expect_as_in_one_process;
using testing::make_branched_net;
using testing::mean_square;
using testing::RankStep;
using testing::ShardingCase;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class Autograd : public ::testing::TestWithParam<ShardingCase> {
 protected:
  template <typename Step>
  void expect_alike(const Step& step) {
    expect_as_in_one_process(GetParam(), make_branched_net, step);
  }
};
INSTANTIATE_TEST_SUITE_P(All, Autograd, ::testing::ValuesIn(testing::sharding_cases()),
                         [](const auto& info) { return testing::name_of(info.param); });

// ---------------------------------------------------------------- parts that are not used

TEST_P(Autograd, ModulesThatNobodyUses) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) { rank.backward(net.loss(rank.x())); });
}

TEST_P(Autograd, AModuleUsedInTheSecondStepOnly) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor h = net.encode(rank.x());
    torch::Tensor loss = mean_square(net.decode(h));
    rank.backward(rank.step == 0 ? loss : loss + mean_square(net.side(h)));
  });
}

// The gradient is zero on odd ranks, and the ranks stay in step. (Until automatic units are cut, each parameter is a
// unit.)
TEST_P(Autograd, AParameterUnusedOnOddRanks) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor h = torch::tanh(net.b(net.encode(rank.x())));
    bool unused = rank.rank % 2 && (rank.step > 0 || !GetParam().automatic);
    rank.backward(mean_square(unused ? torch::linear(h, net.c->weight) : net.c(h)));
  });
}

// The way to leave out a whole module, as the error in autograd_failures_test.cpp recommends.
TEST_P(Autograd, AModuleThatContributesZeroOnOddRanks) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor h = net.encode(rank.x());
    torch::Tensor side = net.side(h);
    rank.backward(mean_square(net.decode(h)) + (rank.rank % 2 ? 0 * side.sum() : mean_square(side)));
  });
}

// ---------------------------------------------------------------- outputs

struct Outputs {
  std::map<std::string, std::vector<torch::Tensor>> heads;
  std::tuple<torch::Tensor, std::optional<std::pair<torch::Tensor, int>>> hidden;
};

Outputs all_outputs(BranchedNetImpl& net, const torch::Tensor& x) {
  torch::Tensor h = net.encode(x);
  torch::Tensor y = net.decode(h);
  return {{{"main", {y, net.spare(y)}}, {"side", {net.side(h)}}}, {h, std::make_pair(torch::sigmoid(h), 1)}};
}

TEST_P(Autograd, NestedOutputsOfWhichSomeAreUsed) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    Outputs out = all_outputs(net, rank.x());
    torch::Tensor loss = mean_square(out.heads.at("main")[0]) + std::get<1>(out.hidden)->first.sum();
    rank.backward(rank.step == 0 ? loss : loss + mean_square(out.heads.at("side")[0]));
  });
}

TEST_P(Autograd, InPlaceOperatorsOnOutputs) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor h = net.a(rank.x()).mul_(net.scale).tanh_();
    torch::Tensor y = net.c(net.b(h).add_(net.scale).relu_());
    y.select(1, 0).mul_(3);
    rank.backward(mean_square(y));
  });
}

TEST_P(Autograd, DetachedUses) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor h = net.encode(rank.x());
    torch::Tensor target = net.side(h).detach().sum(1, true);
    torch::Tensor y = torch::linear(h, net.b->weight.detach(), net.b->bias);
    rank.backward(mean_square(net.c(y) - target) + (net.scale.detach() * net.scale).sum());
  });
}

// ---------------------------------------------------------------- gradients that others hold

// The gradient of a sum is one tensor shared by both terms. A hook on the other term writes to it before the unit is
// reduced.
TEST_P(Autograd, GradientsThatOthersWriteLater) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor y = net.decode(net.encode(rank.x()));
    torch::Tensor other = torch::ones({2}, y.options()).requires_grad_() * 2;
    other.register_hook([](const torch::Tensor& gradient) { gradient.mul_(1000); });
    torch::Tensor both = net.side->bias + other;
    rank.backward(mean_square(y) + mean_square(torch::linear(net.encode(rank.x(1)), net.side->weight) + both * 2));
  });
}

// A hook keeps a gradient, and another one writes to it while backward continues.
TEST_P(Autograd, GradientsThatAHookKeeps) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    auto kept = std::make_shared<torch::Tensor>();
    torch::Tensor h = torch::tanh(net.b(net.encode(rank.x())));
    auto keep = net.c->bias.register_hook([kept](const torch::Tensor& gradient) { *kept = gradient; });
    h.register_hook([kept](const torch::Tensor&) { kept->mul_(1000); });
    rank.backward(mean_square(net.c(h)));
    net.c->bias.remove_hook(keep);
  });
}

// ---------------------------------------------------------------- several forwards and backwards

TEST_P(Autograd, SeveralForwardsThenOneBackward) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor first = net.loss(rank.x(0));
    torch::Tensor second = mean_square(net.side(net.encode(rank.x(1))));
    rank.backward(first + 2 * second + net.loss(rank.x(2)));
  });
}

TEST_P(Autograd, SeveralForwardsThenTheirBackwards) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor first = net.loss(rank.x(0));
    torch::Tensor second = mean_square(net.side(net.encode(rank.x(1))));
    rank.backward(rank.step == 0 ? first : second);
    rank.backward(rank.step == 0 ? second : first);
  });
}

TEST_P(Autograd, RetainedGraphs) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor h = net.encode(rank.x());
    torch::Tensor loss = mean_square(net.decode(h));
    rank.backward(loss, /*retain_graph=*/true);
    rank.backward(mean_square(net.side(h)), /*retain_graph=*/true);
    rank.backward(loss);
  });
}

TEST_P(Autograd, EvaluationInBetween) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    auto evaluate = [&](int number) {
      torch::NoGradGuard no_grad;
      rank.see(net.spare(net.forward(rank.x(number))));
    };
    evaluate(1);
    torch::Tensor loss = net.loss(rank.x());
    evaluate(2);
    rank.backward(loss);
    evaluate(3);
  });
}

// ---------------------------------------------------------------- gradients of some tensors, nested passes

MATCHER(HasNoGradient, "") { return !arg.grad().defined(); }

// autograd::grad returns local gradients, which are neither reduced nor kept. A later backward is unaffected.
TEST_P(Autograd, GradientsOfSomeParametersAndOfInputs) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor x = rank.x().requires_grad_();
    torch::Tensor loss = net.loss(x);
    for (const torch::Tensor& gradient : torch::autograd::grad({loss}, {net.a->weight, net.c->bias, net.scale, x}, {},
                                                               /*retain_graph=*/true)) {
      rank.see(gradient);
    }
    if (rank.sharded) {
      EXPECT_THAT(rank.sharded->parameters(), ::testing::Each(HasNoGradient()));
    }
    rank.backward(loss);
    rank.see(x.grad() / rank.share);
  });
}

TEST_P(Autograd, BackwardIntoSomeParameters) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor loss = net.loss(rank.x()) * rank.share;
    std::vector<torch::Tensor> inputs = {net.b->weight, net.scale};
    loss.backward({}, /*retain_graph=*/false, /*create_graph=*/false, inputs);
  });
}

TEST_P(Autograd, GradientPenalty) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor x = rank.x().requires_grad_();
    torch::Tensor loss = net.loss(x);
    torch::Tensor gradient = torch::autograd::grad({loss}, {x}, {}, c10::nullopt, /*create_graph=*/true)[0];
    rank.see(gradient);
    rank.backward(loss + gradient.pow(2).sum());
  });
}

// y = b(h). A pass inside the outer one computes its gradient, either with respect to h alone or to b as well.
struct NestedLayer : torch::autograd::Function<NestedLayer> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& h, BranchedNetImpl* net, bool train_b) {
    context->save_for_backward({h});
    context->saved_data["net"] = reinterpret_cast<int64_t>(net);
    context->saved_data["train_b"] = train_b;
    return net->b(h);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* net = reinterpret_cast<BranchedNetImpl*>(context->saved_data["net"].toInt());
    torch::AutoGradMode enable(true);
    torch::Tensor h = context->get_saved_variables()[0].detach().requires_grad_();
    torch::Tensor y = net->b(h);
    if (context->saved_data["train_b"].toBool()) {
      y.backward(gradients[0]);
    } else {
      h.mutable_grad() = torch::autograd::grad({y}, {h}, {gradients[0]})[0];
    }
    return {h.grad(), torch::Tensor(), torch::Tensor()};
  }
};

TEST_P(Autograd, PassesInsideBackward) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor h = net.encode(rank.x());
    h = torch::tanh(NestedLayer::apply(h, &net, /*train_b=*/false));
    h = torch::tanh(NestedLayer::apply(h, &net, /*train_b=*/rank.step == 1));
    rank.backward(mean_square(net.c(h)));
  });
}

// ---------------------------------------------------------------- with accumulation and recomputation

TEST_P(Autograd, AccumulationWithoutCommunication) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    {
      auto no_sync = rank.sharded ? std::make_unique<ShardedModule::NoSync>(*rank.sharded) : nullptr;
      torch::Tensor h = net.encode(rank.x(0));
      rank.backward(mean_square(net.side(h)), /*retain_graph=*/true);
      rank.backward(mean_square(net.decode(h)));
      rank.backward(mean_square(rank.rank % 2 ? torch::linear(rank.x(1), net.a->weight) : net.a(rank.x(1))));
    }
    torch::Tensor first = net.loss(rank.x(2));
    rank.backward(first + mean_square(net.encode(rank.x(3)).detach() * net.scale));
  });
}

TEST_P(Autograd, RecomputedRegions) {
  expect_alike([](BranchedNetImpl& net, RankStep rank) {
    auto heads = [&](const torch::Tensor& h) {
      return std::make_tuple(net.decode(h), net.side(h), net.side(h.detach()));
    };
    auto encode = [&](const torch::Tensor& x) { return net.encode(x); };
    torch::Tensor x = rank.x(0).requires_grad_();
    torch::Tensor h = activation_checkpoint(encode, x);
    auto [y, side, stopped] = activation_checkpoint(heads, h);
    torch::Tensor loss = mean_square(y) + (rank.step == 0 ? mean_square(stopped) : mean_square(side));
    rank.backward(loss, /*retain_graph=*/true);
    rank.backward(loss);
    rank.see(x.grad() / rank.share);
  });
}

// ---------------------------------------------------------------- shared weights

// A net whose first and last layers share a weight, and whose middle layer is called twice with other layers in
// between.
struct TiedNetImpl : torch::nn::Module {
  TiedNetImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    middle = register_module("middle", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    to(at::kDouble);
    last = register_module("last", std::make_shared<testing::TiedLinearImpl>(first->weight));
    last->bias.set_data(last->bias.to(at::kDouble));
  }
  torch::Tensor loss(const torch::Tensor& x) {
    torch::Tensor h = torch::tanh(middle(norm(middle(first(x)))));
    return mean_square(last->forward(h));
  }
  torch::nn::Linear first{nullptr}, middle{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  std::shared_ptr<testing::TiedLinearImpl> last;
};
TORCH_MODULE(TiedNet);

void expect_tied_alike(const ShardingCase& sharding, const std::function<void(Options&)>& change_options) {
  auto run_step = [](TiedNetImpl& net, RankStep rank) { rank.backward(net.loss(rank.x())); };
  expect_as_in_one_process(sharding, [] { return TiedNet(); }, run_step, change_options);
}

TEST_P(Autograd, WeightsTiedAcrossUnits) { expect_tied_alike(GetParam(), {}); }

TEST_P(Autograd, WeightsTiedInOneUnit) {
  expect_tied_alike(GetParam(), [](Options& options) { options.auto_wrap_policy = {}; });
}

// ---------------------------------------------------------------- threads

class AutogradThreads : public ::testing::TestWithParam<ShardingCase> {};

std::vector<ShardingCase> cases_of_one_rank() {
  std::vector<ShardingCase> cases;
  for (ShardingCase sharding : testing::sharding_cases()) {
    if (sharding.world_size == 1) {
      cases.push_back(sharding);
      sharding.strict = !sharding.strict;
      cases.push_back(sharding);
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, AutogradThreads, ::testing::ValuesIn(cases_of_one_rank()),
                         [](const auto& info) { return testing::name_of(info.param); });

TEST_P(AutogradThreads, InferenceOnOneModel) {
  BranchedNet plain = testing::seeded(make_branched_net), net = testing::seeded(make_branched_net);
  auto sharded = testing::shard(*net, GetParam(), testing::options_of(GetParam(), testing::one_rank()));
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      torch::NoGradGuard no_grad;
      for (int step = 0; step < 25; ++step) {
        std::vector<torch::Tensor> unseen;
        torch::Tensor x = RankStep{nullptr, number, step, 1, unseen}.x();
        EXPECT_TRUE(torch::equal(net->forward(x), plain->forward(x))) << "thread " << number << ", step " << step;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace fsdp
