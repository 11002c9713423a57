// Rule R5: gradients follow the graph task: with any kind of backward, none is lost, doubled or stale.
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>

#include "engine/engine.h"
#include "support/nets/on_demand_net.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::expect_error;
using testing::expect_same;
using testing::expect_trains_alike;
using testing::gradients_of;
using testing::make_on_demand_net;
using testing::OnDemandNetImpl;
using testing::shard_strictly;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Grouping {
  const char* name;
  bool one_unit;
  bool strict;
};
class GradientLifetime : public ::testing::TestWithParam<Grouping> {
 protected:
  void SetUp() override {
    plain = make_on_demand_net();
    net = make_on_demand_net();
    sharded = shard(*net);
  }
  std::shared_ptr<ShardedModule> shard(torch::nn::Module& module) {
    Options options = testing::one_rank_options();
    if (GetParam().one_unit) options.auto_wrap_policy = {};
    auto result = fully_shard(module, options);
    result->engine().gatherer().set_strict(GetParam().strict);
    return result;
  }
  // Does the same with both models and compares their gradients. The engine must not hold anything afterwards.
  template <typename Body>
  void expect_alike(Body body) {
    body(*plain);
    body(*net);
    expect_same(gradients_of(*sharded), gradients_of(*plain));
    expect_quiet();
  }
  void expect_quiet() {
    EXPECT_EQ(sharded->diagnostics().stats().gathered_bytes, 0);
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
    EXPECT_EQ(sharded->diagnostics().stats().gradient_buffer_bytes, 0);
  }
  void clear() {
    plain->zero_grad();
    net->zero_grad();
  }
  std::shared_ptr<OnDemandNetImpl> plain, net;
  std::shared_ptr<ShardedModule> sharded;
};
INSTANTIATE_TEST_SUITE_P(All, GradientLifetime,
                         ::testing::Values(Grouping{"units", false, true}, Grouping{"one_unit", true, true},
                                           Grouping{"units_kept", false, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(GradientLifetime, UnusedParametersStayUndefined) {
  expect_alike([](OnDemandNetImpl& m) { m.loss(/*with_b=*/false).backward(); });
  EXPECT_FALSE(gradients_of(*sharded).at("b.weight").defined());
}

TEST_P(GradientLifetime, UnusedOnceKeepsItsEarlierGradient) {
  expect_alike([](OnDemandNetImpl& m) { m.loss(true).backward(); });
  expect_alike([](OnDemandNetImpl& m) { m.loss(false).backward(); });
  clear();
  expect_alike([](OnDemandNetImpl& m) { m.loss(false).backward(); });
}

TEST_P(GradientLifetime, AccumulatesOverBackwards) {
  for (int i = 0; i < 3; ++i) expect_alike([i](OnDemandNetImpl& m) { (m.loss() * (i + 1)).backward(); });
}

// Other code keeps the gradient of one parameter, as `g = p.grad; p.grad = None` does, while others accumulate.
TEST_P(GradientLifetime, AGradientThatWasKeptIsNotWrittenTo) {
  for (const std::string name : {"b.weight", "c.bias"}) {
    clear();
    expect_alike([](OnDemandNetImpl& m) { m.loss().backward(); });
    const auto leaves = sharded->named_parameters();
    const auto leaf = std::find_if(leaves.begin(), leaves.end(), [&](const auto& one) { return one.first == name; });
    ASSERT_NE(leaf, leaves.end());
    const torch::Tensor kept = leaf->second.grad();
    const torch::Tensor values = kept.clone();
    leaf->second.mutable_grad().reset();
    plain->named_parameters()[name].mutable_grad().reset();
    for (int i = 0; i < 2; ++i) expect_alike([](OnDemandNetImpl& m) { (m.loss() * 3).backward(); });
    EXPECT_TRUE(torch::equal(kept, values)) << name;
  }
}

TEST_P(GradientLifetime, RetainedGraphTwice) {
  expect_alike([](OnDemandNetImpl& m) {
    torch::Tensor loss = m.loss();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

TEST_P(GradientLifetime, SeveralForwardsThenBackwards) {
  expect_alike([](OnDemandNetImpl& m) {
    torch::Tensor first = m.loss(), second = m.loss(false) * 3;
    second.backward();
    first.backward();
  });
}

TEST_P(GradientLifetime, BackwardForSomeInputs) {
  expect_alike([](OnDemandNetImpl& m) {
    m.loss().backward({}, c10::nullopt, false, std::vector<torch::Tensor>{m.b->weight, m.c->bias});
  });
  EXPECT_FALSE(gradients_of(*sharded).at("b.bias").defined());
  clear();
  expect_alike([](OnDemandNetImpl& m) { m.loss().backward(); });
}

TEST_P(GradientLifetime, GradReturnsLocalGradientsAndCapturesNothing) {
  auto grads = [](OnDemandNetImpl& m) { return torch::autograd::grad({m.loss()}, m.parameters()); };
  auto want = grads(*plain);
  auto got = grads(*net);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i]));
  for (const auto& [name, gradient] : gradients_of(*sharded)) EXPECT_FALSE(gradient.defined()) << name;
  expect_quiet();
  expect_alike([](OnDemandNetImpl& m) { m.loss().backward(); });
}

TEST_P(GradientLifetime, CreateGraphIntoGradIsAnError) {
  std::string message = expect_error([&] { net->loss().backward({}, c10::nullopt, /*create_graph=*/true); },
                                     {"create_graph", "torch::autograd::grad"});
  EXPECT_NE(message.find("parameter '"), std::string::npos);
  sharded->zero_grad();
  expect_alike([](OnDemandNetImpl& m) { m.loss().backward(); });
}

TEST_P(GradientLifetime, GradientPenalty) {
  expect_alike([](OnDemandNetImpl& m) {
    torch::Tensor x = m.x.clone().set_requires_grad(true);
    torch::Tensor y = m.c(torch::tanh(m.b(torch::tanh(m.a(x))))).sum();
    torch::Tensor g = torch::autograd::grad({y}, {x}, {}, c10::nullopt, /*create_graph=*/true)[0];
    (y + g.pow(2).sum()).backward();
  });
}

TEST_P(GradientLifetime, PenaltyOnParameterGradients) {
  expect_alike([](OnDemandNetImpl& m) {
    torch::Tensor loss = m.loss();
    auto gradients = torch::autograd::grad({loss}, m.parameters(), {}, c10::nullopt, /*create_graph=*/true);
    for (const torch::Tensor& gradient : gradients) loss = loss + gradient.pow(2).sum();
    loss.backward();
  });
}

TEST_P(GradientLifetime, TensorHooksAreHonoured) {
  for (OnDemandNetImpl* m : {plain.get(), net.get()}) {
    m->b->weight.register_hook([](torch::Tensor gradient) { return gradient * 2; });
  }
  expect_alike([](OnDemandNetImpl& m) { m.loss().backward(); });
}

TEST_P(GradientLifetime, AParameterAsTheLossItself) {
  expect_alike([](OnDemandNetImpl& m) { m.a->weight.index({0, 1}).backward(); });
  expect_alike([](OnDemandNetImpl& m) { m.b->bias.sum().backward(); });
  expect_alike([](OnDemandNetImpl& m) { m.c->bias.backward(torch::arange(4).to(torch::kFloat)); });
}

// The gradient that reaches one parameter is another parameter, or a view of one.
TEST_P(GradientLifetime, AParameterAsGradientOfAnother) {
  expect_alike([](OnDemandNetImpl& m) { (m.a->weight * m.b->weight).sum().backward(); });
  clear();
  expect_alike([](OnDemandNetImpl& m) { m.a->weight.backward(m.b->weight.detach()); });
  clear();
  expect_alike([](OnDemandNetImpl& m) { m.a->weight.t().backward(m.c->weight.detach().t()); });
}

// ---- a backward that throws

struct Bomb : torch::autograd::Function<Bomb> {
  static torch::Tensor forward(AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, variable_list) { throw std::runtime_error("bomb"); }
};

TEST_P(GradientLifetime, AThrowingBackwardLeavesNothing) {
  for (int round = 0; round < 2; ++round) {
    for (bool reset : {false, true}) {
      SCOPED_TRACE(reset);
      torch::Tensor h = Bomb::apply(torch::tanh(net->b(net->a(net->x))));
      expect_error([&] { net->c(h).pow(2).sum().backward(); }, {"bomb"});
      h = torch::Tensor();
      if (reset) {
        sharded->reset();
        expect_quiet();
      }
      clear();
      expect_alike([](OnDemandNetImpl& m) { m.loss().backward(); });
    }
  }
}

// Even without clearing, gradients captured by a failed backward must not become part of the next one.
TEST_P(GradientLifetime, HalfCapturedGradientsAreDiscarded) {
  auto broken = [](OnDemandNetImpl& m) {
    torch::Tensor h = Bomb::apply(m.a(m.x));
    return (h * m.b->bias).sum();  // b.bias is captured before the bomb, b.weight is not
  };
  expect_error([&] { broken(*net).backward(); }, {"bomb"});
  torch::Tensor bias = sharded->engine().units().size() > 1 ? gradients_of(*sharded).at("b.bias") : torch::Tensor();
  EXPECT_FALSE(bias.defined());
  expect_alike([](OnDemandNetImpl& m) { m.loss().backward(); });
}

TEST_P(GradientLifetime, AThrowingTensorHook) {
  torch::Tensor h = torch::tanh(net->b(net->a(net->x)));
  h.register_hook([](torch::Tensor) -> torch::Tensor { throw std::runtime_error("hook"); });
  expect_error([&] { net->c(h).sum().backward(); }, {"hook"});
  clear();
  expect_alike([](OnDemandNetImpl& m) { m.loss().backward(); });
}

// ---- recomputation

using Segment = std::function<torch::Tensor(const torch::Tensor&)>;

// Reentrant checkpointing: runs forward without a graph, and a backward inside backward.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const Segment* segment) {
    context->save_for_backward({x});
    context->saved_data["segment"] = reinterpret_cast<int64_t>(segment);
    torch::NoGradGuard no_grad;
    return (*segment)(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* segment = reinterpret_cast<const Segment*>(context->saved_data["segment"].toInt());
    torch::Tensor x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    torch::AutoGradMode enable(true);
    torch::Tensor y = (*segment)(x);
    y.backward(gradients[0]);
    return {x.grad(), Variable()};
  }
};
torch::Tensor reentrant(const torch::Tensor& x, const Segment& segment) { return Reentrant::apply(x, &segment); }

TEST_P(GradientLifetime, ReentrantCheckpoints) {
  expect_alike([](OnDemandNetImpl& m) {
    Segment a = [&](const torch::Tensor& x) { return torch::tanh(m.a(x)); };
    Segment b = [&](const torch::Tensor& x) { return torch::tanh(m.b(x)); };
    Segment c = [&](const torch::Tensor& x) { return m.c(x); };
    torch::Tensor x = m.x.clone().set_requires_grad(true);
    reentrant(reentrant(reentrant(x, a), b), c).pow(2).sum().backward();
  });
}

TEST_P(GradientLifetime, NestedReentrantCheckpoints) {
  expect_alike([](OnDemandNetImpl& m) {
    Segment b = [&](const torch::Tensor& x) { return torch::tanh(m.b(x)); };
    Segment ab = [&](const torch::Tensor& x) { return reentrant(torch::tanh(m.a(x)), b); };
    Segment abc = [&](const torch::Tensor& x) { return m.c(reentrant(x, ab)); };
    torch::Tensor x = m.x.clone().set_requires_grad(true);
    (reentrant(x, abc).pow(2).sum() + m.loss()).backward();
  });
}

// The same layer is captured in the outer pass and in two inner ones. The three captures add up.
TEST_P(GradientLifetime, TiedLayerInReentrantCheckpoints) {
  expect_alike([](OnDemandNetImpl& m) {
    Segment a = [&](const torch::Tensor& x) { return torch::tanh(m.a(x)); };
    torch::Tensor x = m.x.clone().set_requires_grad(true);
    m.a(reentrant(reentrant(x, a), a)).pow(2).sum().backward();
  });
  EXPECT_TRUE(gradients_of(*sharded).at("a.weight").defined());
}

TEST_P(GradientLifetime, AnInnerBackwardThatThrowsIsCaught) {
  expect_error(
      [&] {
        Segment broken = [&](const torch::Tensor& x) { return Bomb::apply(torch::tanh(net->b(x))); };
        torch::Tensor x = net->x.clone().set_requires_grad(true);
        net->c(reentrant(net->a(x), broken)).sum().backward();
      },
      {"bomb"});
  clear();
  expect_alike([](OnDemandNetImpl& m) { m.loss().backward(); });
}

// Non-reentrant recomputation: drops a saved value, and computes it again when backward unpacks it.
class Recompute : public torch::autograd::SavedVariableHooks {
 public:
  explicit Recompute(std::function<torch::Tensor()> again) : again_(std::move(again)) {}
  void call_pack_hook(const torch::Tensor&) override {}
  torch::Tensor call_unpack_hook() override {
    torch::AutoGradMode enable(true);
    return again_();
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data() const override {
    return std::nullopt;
  }
#endif

 private:
  std::function<torch::Tensor()> again_;
};

TEST_P(GradientLifetime, RecomputationThroughSavedTensorHooks) {
  int recomputed = 0;
  expect_alike([&](OnDemandNetImpl& m) {
    torch::Tensor h = torch::tanh(m.b(torch::tanh(m.a(m.x))));
    torch::Tensor y = m.c(h);
    auto* node = dynamic_cast<torch::autograd::generated::AddmmBackward0*>(y.grad_fn().get());
    ASSERT_NE(node, nullptr);
    node->mat1_.register_hooks(std::make_unique<Recompute>([&m, &recomputed] {
      ++recomputed;
      return torch::tanh(m.b(torch::tanh(m.a(m.x)))).detach();
    }));
    node->mat2_.register_hooks(std::make_unique<Recompute>([&m] { return m.c->weight.t(); }));
    y.pow(2).sum().backward();
  });
  EXPECT_EQ(recomputed, 2);
}

TEST_P(GradientLifetime, CustomFunctionsSaveAndHoldParameters) {
  struct Product : torch::autograd::Function<Product> {
    static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& w,
                                 const torch::Tensor& v) {
      context->save_for_backward({x, w});
      context->saved_data["v"] = v;
      return x.mm(w.t()).mm(v.detach().t());
    }
    static variable_list backward(AutogradContext* context, variable_list gradients) {
      auto saved = context->get_saved_variables();
      torch::Tensor v = context->saved_data["v"].toTensor(), g = gradients[0];
      torch::Tensor xw = saved[0].mm(saved[1].t());
      return {g.mm(v).mm(saved[1]), g.mm(v).t().mm(saved[0]), g.t().mm(xw)};
    }
  };
  expect_alike([](OnDemandNetImpl& m) { Product::apply(m.x, m.a->weight, m.b->weight).pow(2).sum().backward(); });
}

}  // namespace
}  // namespace fsdp
