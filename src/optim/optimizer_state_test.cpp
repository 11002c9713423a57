// Tests that optimizers whose state and options were copied by name continue exactly like the originals, bit for bit.
#include "fsdp/optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "optim/fused_adamw.h"
#include "support/faults/error_of.h"

namespace fsdp::optim::optimizer_state_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

// Makes parameters for two groups; parameter 2 gets no gradient until step 4; one parameter is empty.
Tensors make_parameters() {
  torch::manual_seed(5);
  Tensors parameters;
  for (int64_t size : {13, 0, 3, 31}) parameters.push_back(torch::randn({size}).set_requires_grad(true));
  return parameters;
}

void set_gradients(int step, Tensors& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i == 2 && step < 4) continue;
    parameters[i].mutable_grad() = torch::cos(torch::arange(parameters[i].numel(), at::kFloat) + step);
  }
}

struct Kind {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>, bool other)>
      make;
};

// `other` selects the other options.
template <typename Optimizer, typename Options>
Kind kind(const std::string& name, const Options& options, const Options& others) {
  return {name, [=](auto groups, bool other) {
            const Options& chosen = other ? others : options;
            groups[0].set_options(std::make_unique<Options>(chosen));
            groups[1].set_options(std::make_unique<Options>(chosen));
            static_cast<Options&>(groups[1].options()).lr(other ? 1 : 0.5);
            return std::make_unique<Optimizer>(std::move(groups), chosen);
          }};
}

std::vector<Kind> kinds() {
  using namespace torch::optim;
  return {kind<Adam>("Adam", AdamOptions(0.1).amsgrad(true).betas({0.7, 0.8}).weight_decay(0.1), AdamOptions(1)),
          kind<AdamW>("AdamW", AdamWOptions(0.1).eps(1e-4), AdamWOptions(1).amsgrad(true)),
          kind<SGD>("SGD", SGDOptions(0.1).momentum(0.9).nesterov(true), SGDOptions(1)),
          kind<SGD>("SGD_plain", SGDOptions(0.1), SGDOptions(1).momentum(0.5)),
          kind<Adagrad>("Adagrad", AdagradOptions(0.1).lr_decay(0.1), AdagradOptions(1).eps(1)),
          kind<RMSprop>("RMSprop", RMSpropOptions(0.1).momentum(0.5).centered(true), RMSpropOptions(1))};
}

std::vector<torch::optim::OptimizerParamGroup> in_groups(const Tensors& p) {
  return {torch::optim::OptimizerParamGroup({p[0], p[1]}), torch::optim::OptimizerParamGroup({p[2], p[3]})};
}

// Copies the state that a checkpoint would save, into memory of its own.
void copy_state(const OptimizerState& from, OptimizerState& to) {
  const auto sources = from.groups(), targets = to.groups();
  ASSERT_EQ(sources.size(), targets.size());
  for (size_t group = 0; group < sources.size(); ++group) {
    to.set_options(group, from.options(group));
    for (size_t i = 0; i < sources[group].size(); ++i) {
      std::optional<LeafState> state = from.leaf(sources[group][i]);
      if (state) {
        for (auto& [name, tensor] : state->tensors) tensor = tensor.clone();
      }
      to.set_leaf(targets[group][i], state);
    }
  }
}

void expect_same(const Tensors& got, const Tensors& want) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
}

template <typename Optimizer>
void train(Optimizer& optimizer, Tensors& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    set_gradients(step, parameters);
    optimizer.step();
  }
}

class NamedOptimizer : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, NamedOptimizer, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(NamedOptimizer, ContinuesFromItsState) {
  Tensors parameters = make_parameters();
  auto optimizer = GetParam().make(in_groups(parameters), false);
  train(*optimizer, parameters, 0, 3);
  Tensors copies;
  for (const at::Tensor& p : parameters) copies.push_back(p.detach().clone().set_requires_grad(true));
  auto other = GetParam().make(in_groups(copies), true);
  copy_state(*state_of(*optimizer), *state_of(*other));
  train(*optimizer, parameters, 3, 6);
  train(*other, copies, 3, 6);
  expect_same(copies, parameters);
}

TEST(NamedFusedAdamW, ContinuesAsItselfAndAsTorchs) {
  Tensors parameters = make_parameters();
  FusedAdamW optimizer(parameters, {.learning_rate = 0.1, .weight_decay = 0.1});
  train(optimizer, parameters, 0, 3);
  Tensors copies, others;
  for (const at::Tensor& p : parameters) {
    copies.push_back(p.detach().clone().set_requires_grad(true));
    others.push_back(p.detach().clone().set_requires_grad(true));
  }
  FusedAdamW copy(copies, {});
  copy_state(*optimizer.named_state(), *copy.named_state());
  torch::optim::AdamW torchs(others, torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  const auto named = state_of(torchs);
  for (size_t i = 0; i < others.size(); ++i) {
    auto state = optimizer.named_state()->leaf(parameters[i]);
    if (state) {
      for (auto& [name, tensor] : state->tensors) tensor = tensor.clone();
    }
    named->set_leaf(others[i], state);
  }
  train(optimizer, parameters, 3, 6);
  train(copy, copies, 3, 6);
  train(torchs, others, 3, 6);
  expect_same(copies, parameters);
  for (size_t i = 0; i < others.size(); ++i) EXPECT_TRUE(torch::allclose(others[i], parameters[i], 1e-5, 1e-6)) << i;
}

TEST(NamedFusedAdamW, HasOneGroup) {
  FusedAdamW optimizer(make_parameters(), {});
  const auto state = optimizer.named_state();
  EXPECT_THAT(error_of([&] { state->options(1); }), HasSubstr("only parameter group 0, not 1"));
  EXPECT_THAT(error_of([&] { state->set_options(1, state->options(0)); }), HasSubstr("only parameter group 0, not 1"));
  EXPECT_THAT(error_of([&] { state->set_leaf(torch::ones({3}), std::nullopt); }), HasSubstr("not a leaf"));
}

// Groups may be added while the named state is in use.
TEST(NamedState, FollowsAddedGroups) {
  Tensors p = {torch::ones({3}).set_requires_grad(true), torch::ones({2}).set_requires_grad(true)};
  torch::optim::SGD optimizer({p[0]}, torch::optim::SGDOptions(0.1));
  const auto state = state_of(optimizer);
  state->set_leaf(p[0], std::nullopt);
  EXPECT_THAT(error_of([&] { state->set_leaf(p[1], std::nullopt); }), HasSubstr("not a leaf"));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({p[1]}));
  EXPECT_EQ(error_of([&] { state->set_leaf(p[1], std::nullopt); }), "no error");
}

TEST(NamedState, MisfitsAreNamed) {
  Tensors p = {torch::ones({3}).set_requires_grad(true)};
  torch::optim::AdamW optimizer(p);
  const auto state = state_of(optimizer);
  const LeafState good{{{"exp_avg", torch::zeros({3})}, {"exp_avg_sq", torch::zeros({3})}}, {{"step", 1}}};
  const auto error = [&](const std::function<void(LeafState&)>& change) {
    LeafState changed = good;
    change(changed);
    return error_of([&] { state->set_leaf(p[0], changed); });
  };
  EXPECT_EQ(error([](LeafState&) {}), "no error");
  EXPECT_THAT(error([](LeafState& s) { s.tensors.erase("exp_avg"); }),
              AllOf(HasSubstr("AdamW"), HasSubstr("'exp_avg'")));
  EXPECT_THAT(error([](LeafState& s) { s.scalars.clear(); }), HasSubstr("'step'"));
  EXPECT_THAT(error([](LeafState& s) { s.tensors["sum"] = torch::zeros({3}); }), HasSubstr("'sum'"));
  EXPECT_THAT(error([](LeafState& s) { s.tensors["exp_avg"] = torch::zeros({4}); }), HasSubstr("[4]"));
  EXPECT_THAT(error([](LeafState& s) { s.tensors["exp_avg"] = torch::zeros({3}, at::kDouble); }),
              AllOf(HasSubstr("Double"), HasSubstr("its leaf Float")));
  EXPECT_THAT(error_of([&] { state->set_leaf(torch::ones({3}), good); }), HasSubstr("not a leaf"));
  EXPECT_THAT(error_of([&] { state->options(1); }), HasSubstr("group 1 of 1"));
  auto options = state->options(0);
  options["momentum"] = 1;
  EXPECT_THAT(error_of([&] { state->set_options(0, options); }), HasSubstr("'momentum'"));
  options.erase("momentum");
  options.erase("lr");
  EXPECT_THAT(error_of([&] { state->set_options(0, options); }), HasSubstr("'lr'"));
  torch::optim::LBFGS lbfgs(p);
  EXPECT_THAT(error_of([&] { state_of(lbfgs); }), HasSubstr("OptimizerState"));
}

}  // namespace
}  // namespace fsdp::optim::optimizer_state_test
