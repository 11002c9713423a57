// Rule R2: operators outside ATen may hide parameters, take them in any container, or run a backward inside.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <chrono>
#include <thread>

#include "engine/engine.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::Bag;
using testing::expect_error;
using testing::expect_same;
using testing::gradients_of;
using testing::same_bits;
using testing::shard_strictly;

// State that the operators below use although they do not get it as an argument.
torch::Tensor hidden;
std::function<void()> inside;

torch::Tensor hidden_mm(const torch::Tensor& x, const torch::Tensor& w) { return x.mm(w).mm(hidden); }
torch::Tensor call_inside(const torch::Tensor& w) {
  inside();
  return w.sum();
}
torch::Tensor sum_list(const std::vector<torch::Tensor>& tensors) {
  torch::Tensor sum = torch::zeros({});
  for (const torch::Tensor& tensor : tensors) sum = sum + tensor.sum();
  return sum;
}
torch::Tensor sum_dict(const c10::Dict<std::string, torch::Tensor>& tensors) {
  torch::Tensor sum = torch::zeros({});
  for (const auto& entry : tensors) sum = sum + entry.value().sum();
  return sum;
}
torch::Tensor sum_optionals(const c10::List<std::optional<torch::Tensor>>& tensors,
                            const std::optional<torch::Tensor>& last) {
  torch::Tensor sum = last ? last->sum() : torch::zeros({});
  for (const std::optional<torch::Tensor>& tensor : tensors) {
    sum = sum + (tensor && tensor->defined() ? tensor->sum() : torch::zeros({}));
  }
  return sum;
}
torch::Tensor raw_sum(const torch::Tensor& w) {  // runs no operator on w
  torch::Tensor result = torch::zeros({});
  const float* data = w.const_data_ptr<float>();
  for (int64_t i = 0; i < w.numel(); ++i) result.mutable_data_ptr<float>()[0] += data[i];
  return result;
}
torch::Tensor& scale_(torch::Tensor& w, double factor) {
  float* data = w.mutable_data_ptr<float>();
  for (int64_t i = 0; i < w.numel(); ++i) data[i] *= static_cast<float>(factor);
  return w;
}
torch::Tensor scale_and_transpose(torch::Tensor w, double factor) { return scale_(w, factor).t(); }
void scale_dict(const c10::Dict<std::string, torch::Tensor>& tensors, double factor) {
  for (const auto& entry : tensors) entry.value().mul_(factor);
}
torch::Tensor row_sums(const torch::Tensor& w) {
  torch::Tensor result = torch::zeros({w.size(0)});
  at::parallel_for(0, w.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) result.data_ptr<float>()[i] = torch::matmul(w[i], hidden).sum().item<float>();
  });
  return result;
}

TORCH_LIBRARY(fsdp_test, m) {
  m.def("hidden_mm(Tensor x, Tensor w) -> Tensor", hidden_mm);
  m.def("call_inside(Tensor w) -> Tensor", call_inside);
  m.def("sum_list(Tensor[] tensors) -> Tensor", sum_list);
  m.def("sum_dict(Dict(str, Tensor) tensors) -> Tensor", sum_dict);
  m.def("sum_optionals(Tensor?[] tensors, Tensor? last) -> Tensor", sum_optionals);
  m.def("raw_sum(Tensor w) -> Tensor", raw_sum);
  m.def("raw_sum_of_any(Any w) -> Tensor", [](const c10::IValue& w) { return raw_sum(w.toTensor()); });
  m.def("scale_(Tensor(a!) w, float factor) -> Tensor(a!)", scale_);
  m.def("scale_and_transpose(Tensor(a!) w, float factor) -> Tensor(a!)", scale_and_transpose);
  m.def("scale_dict(Dict(str, Tensor) tensors, float factor) -> ()", scale_dict);
  m.def("row_sums(Tensor w) -> Tensor", row_sums);
}

c10::OperatorHandle find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow((std::string("fsdp_test::") + name).c_str(), "");
}
template <typename Signature, typename... Args>
auto call(const char* name, Args&&... args) {
  return find(name).typed<Signature>().call(std::forward<Args>(args)...);
}
torch::Tensor call_boxed(const char* name, std::vector<c10::IValue> stack) {
  find(name).callBoxed(&stack);
  return stack.at(0).toTensor();
}

class CustomOperators : public ::testing::Test {
 protected:
  void SetUp() override {
    torch::manual_seed(3);
    for (int i = 0; i < 3; ++i) values.push_back(torch::randn({4, 4}));
    for (torch::Tensor& value : values) bags.push_back(Bag(std::vector<torch::Tensor>{value.clone()}));
    // Three units, so that using one gathers no other.
    for (Bag& bag : bags) all->push_back(bag.ptr());
    sharded = shard_strictly(*all);
    ASSERT_EQ(sharded->engine().units().size(), 3);
  }
  void TearDown() override {
    hidden = torch::Tensor();
    inside = {};
  }
  torch::Tensor p(int i) { return bags[i]->parameters()[0]; }
  std::vector<torch::Tensor> values;
  std::vector<Bag> bags;
  torch::nn::ModuleList all;
  std::shared_ptr<ShardedModule> sharded;
};

TEST_F(CustomOperators, AKernelThatHidesAnotherParameter) {
  torch::NoGradGuard no_grad;
  hidden = p(1);
  torch::Tensor x = torch::ones({2, 4});
  using Signature = torch::Tensor(const torch::Tensor&, const torch::Tensor&);
  EXPECT_TRUE(same_bits(call<Signature>("hidden_mm", x, p(0)), x.mm(values[0]).mm(values[1])));
  hidden = p(0);  // the same tensor as the argument
  EXPECT_TRUE(same_bits(call<Signature>("hidden_mm", x, p(0)), x.mm(values[0]).mm(values[0])));
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
}

TEST_F(CustomOperators, GradientsThroughAHiddenParameter) {
  hidden = p(1);
  torch::Tensor x = torch::ones({2, 4});
  using Signature = torch::Tensor(const torch::Tensor&, const torch::Tensor&);
  call<Signature>("hidden_mm", x, p(0)).pow(2).sum().backward();
  torch::Tensor a = values[0].clone().set_requires_grad(true), b = values[1].clone().set_requires_grad(true);
  x.mm(a).mm(b).pow(2).sum().backward();
  auto gradients = gradients_of(*sharded);
  EXPECT_TRUE(same_bits(gradients.at("0.p0"), a.grad()));
  EXPECT_TRUE(same_bits(gradients.at("1.p0"), b.grad()));
}

TEST_F(CustomOperators, ABackwardInsideAnOperator) {
  torch::Tensor x = torch::ones({2, 4}).set_requires_grad(true);
  torch::Tensor loss = x.mm(p(0)).tanh().mm(p(1)).sum();
  inside = [&] { loss.backward(); };
  {
    torch::NoGradGuard no_grad;
    (void)call<torch::Tensor(const torch::Tensor&)>("call_inside", p(2));
  }
  torch::Tensor a = values[0].clone().set_requires_grad(true), b = values[1].clone().set_requires_grad(true);
  x.mm(a).tanh().mm(b).sum().backward();
  auto gradients = gradients_of(*sharded);
  EXPECT_TRUE(same_bits(gradients.at("0.p0"), a.grad()));
  EXPECT_TRUE(same_bits(gradients.at("1.p0"), b.grad()));
  EXPECT_FALSE(gradients.at("2.p0").defined());
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
}

TEST_F(CustomOperators, ABackwardInsideOnTheArgumentItself) {
  torch::Tensor loss = p(2).pow(3).sum();
  inside = [&] { loss.backward(); };
  {
    torch::NoGradGuard no_grad;
    torch::Tensor sum = call<torch::Tensor(const torch::Tensor&)>("call_inside", p(2));
    EXPECT_TRUE(same_bits(sum, values[2].sum()));
  }
  EXPECT_TRUE(torch::allclose(gradients_of(*sharded).at("2.p0"), 3 * values[2].pow(2)));
}

TEST_F(CustomOperators, ArgumentsInContainers) {
  torch::NoGradGuard no_grad;
  torch::Tensor want = sum_list(values);
  EXPECT_TRUE(same_bits(call_boxed("sum_list", {std::vector<torch::Tensor>{p(0), p(1), p(2)}}), want));
  c10::Dict<std::string, torch::Tensor> dict;
  dict.insert("a", p(0));
  dict.insert("b", p(1));
  EXPECT_TRUE(same_bits(call_boxed("sum_dict", {dict}), values[0].sum() + values[1].sum()));
  c10::List<std::optional<torch::Tensor>> optionals;
  optionals.push_back(p(0));
  optionals.push_back(std::nullopt);
  EXPECT_TRUE(same_bits(call_boxed("sum_optionals", {optionals, p(1)}), values[1].sum() + values[0].sum()));
  EXPECT_TRUE(same_bits(call_boxed("sum_optionals", {optionals, c10::IValue()}), values[0].sum()));
}

// The kernel reads raw memory, so all of its arguments are gathered while it runs.
TEST_F(CustomOperators, RawReadsOfArguments) {
  torch::NoGradGuard no_grad;
  torch::Tensor want = raw_sum(values[0]);
  EXPECT_TRUE(same_bits(call_boxed("raw_sum", {p(0)}), want));
  // The dispatcher does not inspect arguments of type Any, so this use is not seen. It is an error, not a wrong number.
  expect_error([&] { call_boxed("raw_sum_of_any", {p(0)}); }, {"'0.p0'", "ShardedModule::pin"});
}

TEST_F(CustomOperators, WritesAreSeenInTheSchema) {
  using Signature = torch::Tensor&(torch::Tensor&, double);
  torch::NoGradGuard no_grad;
  torch::Tensor w = p(0);
  EXPECT_TRUE(call<Signature>("scale_", w, 3).is_same(w));
  EXPECT_TRUE(same_bits(testing::weights_of(*sharded).at("0.p0"), values[0] * 3));
  sharded->with_full_params([&] { call<Signature>("scale_", w, 2); });
  EXPECT_TRUE(same_bits(testing::weights_of(*sharded).at("0.p0"), values[0] * 3 * 2));
}

// What a shard cannot follow.
TEST_F(CustomOperators, WritesThatWouldBeLostAreRefused) {
  torch::NoGradGuard no_grad;
  expect_error([&] { call_boxed("scale_and_transpose", {p(0), 3.0}); },
               {"'0.p0'", "fsdp_test::scale_and_transpose", "returns a view", "nothing was written"});
  EXPECT_TRUE(same_bits(p(0).clone(), values[0]));
}

// Operators inside the kernel write; the schema says nothing of the tensors.
TEST_F(CustomOperators, WritesInsideAKernel) {
  torch::NoGradGuard no_grad;
  c10::Dict<std::string, torch::Tensor> dict;
  dict.insert("a", p(1));
  std::vector<c10::IValue> stack = {dict, 3.0};
  find("scale_dict").callBoxed(&stack);
  EXPECT_TRUE(same_bits(testing::weights_of(*sharded).at("1.p0"), values[1] * 3));
}

TEST_F(CustomOperators, TouchesInWorkerThreads) {
  torch::NoGradGuard no_grad;
  hidden = values[1];
  torch::Tensor want = row_sums(values[0]);
  hidden = p(1);
  at::set_num_threads(4);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(same_bits(call_boxed("row_sums", {p(0)}), want));
  at::set_num_threads(1);
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
}

// A unit whose operator is running stays gathered, whatever is requested meanwhile (rule R3).
TEST_F(CustomOperators, ReleasingInsideAnOperatorLeavesItsUnits) {
  torch::NoGradGuard no_grad;
  inside = [&] {
    sharded->reshard();
    (void)p(1).sum();
    sharded->reset();
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 1);
    EXPECT_EQ(raw_sum(p(2)).item<float>(), raw_sum(values[2]).item<float>());
  };
  EXPECT_TRUE(same_bits(call<torch::Tensor(const torch::Tensor&)>("call_inside", p(2)), values[2].sum()));
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
}

TEST_F(CustomOperators, AnOperatorThatThrowsUnpins) {
  torch::NoGradGuard no_grad;
  inside = [] { throw std::runtime_error("thrown inside"); };
  expect_error([&] { call<torch::Tensor(const torch::Tensor&)>("call_inside", p(2)); }, {"thrown inside"});
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
  EXPECT_TRUE(same_bits(p(2).sum(), values[2].sum()));
}

// Operators may be removed and replaced. Facts cached about one must not be used for an operator that replaces it.
TEST_F(CustomOperators, SchemasOfOperatorsThatWereReplaced) {
  torch::NoGradGuard no_grad;
  for (int round = 0; round < 4; ++round) {
    torch::Library library(torch::Library::FRAGMENT, "fsdp_test", std::nullopt, __FILE__, __LINE__);
    if (round % 2 == 0) {
      library.def("come_and_go(Tensor w) -> Tensor", [](const torch::Tensor& w) { return raw_sum(w); });
      EXPECT_TRUE(same_bits(call_boxed("come_and_go", {p(0)}), raw_sum(values[0])));
    } else {
      library.def("come_and_go(int a, int b, Tensor w) -> Tensor",
                  [](int64_t, int64_t, const torch::Tensor& w) { return raw_sum(w); });
      EXPECT_TRUE(same_bits(call_boxed("come_and_go", {1, 2, p(1)}), raw_sum(values[1])));
    }
  }
}

// ---- threads (rule R3)

struct NetImpl : torch::nn::Module {
  NetImpl() {
    embed = register_module("embed", torch::nn::Embedding(20, 16));
    auto options = torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(24).dropout(0.0);
    a = register_module("a", torch::nn::TransformerEncoderLayer(options));
    b = register_module("b", torch::nn::TransformerEncoderLayer(options));
    head = register_module("head", torch::nn::Linear(16, 20));
  }
  torch::Tensor forward(const torch::Tensor& ids) { return head(b(a(embed(ids)))); }
  torch::nn::Embedding embed{nullptr};
  torch::nn::TransformerEncoderLayer a{nullptr}, b{nullptr};
  torch::nn::Linear head{nullptr};
};

constexpr int kThreads = 4;

// Runs `body(thread)` in several threads at once and expects no exceptions.
void in_threads(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::vector<std::string> errors(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      at::set_num_threads(1);
      try {
        body(i);
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

class Threads : public ::testing::TestWithParam<bool> {
 protected:
  std::shared_ptr<ShardedModule> shard(torch::nn::Module& module) {
    Options options = testing::one_rank_options();
    options.auto_wrap_policy = module_class_policy<torch::nn::TransformerEncoderLayerImpl, torch::nn::LinearImpl>();
    auto sharded = fully_shard(module, options);
    sharded->engine().gatherer().set_strict(GetParam());
    return sharded;
  }
};
INSTANTIATE_TEST_SUITE_P(Strict, Threads, ::testing::Bool());

TEST_P(Threads, InferenceOnOneModel) {
  auto net = testing::seeded([] { return std::make_shared<NetImpl>(); });
  net->eval();
  torch::NoGradGuard no_grad;
  torch::Tensor ids = torch::arange(12).view({2, 6}) % 20;
  torch::Tensor want = net->forward(ids);
  auto sharded = shard(*net);
  std::atomic<int> wrong{0};
  in_threads([&](int) {
    torch::NoGradGuard no_grad;
    for (int i = 0; i < 60; ++i) wrong += !torch::equal(net->forward(ids), want);
  });
  EXPECT_EQ(wrong, 0);
  sharded->reshard();
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
}

// Gradients of whole numbers add up without rounding, so each lost or doubled gradient shows.
TEST_P(Threads, ParallelBackwardsLoseNoGradient) {
  struct LayersImpl : torch::nn::Module {
    LayersImpl() {
      for (int i = 0; i < 3; ++i) {
        layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(32, 32)));
        torch::NoGradGuard no_grad;
        layers.back()->weight.zero_();
        layers.back()->weight.fill_diagonal_(1);
        layers.back()->bias.zero_();
      }
    }
    torch::Tensor forward(torch::Tensor x) {
      for (auto& layer : layers) x = layer(x);
      return x;
    }
    std::vector<torch::nn::Linear> layers;
  };
  constexpr int kRounds = 60;
  LayersImpl net;
  auto sharded = shard(net);
  torch::Tensor x = torch::ones({1, 32});
  in_threads([&](int) {
    for (int i = 0; i < kRounds; ++i) net.forward(x).sum().backward();
  });
  for (const auto& [name, gradient] : gradients_of(*sharded)) {
    EXPECT_TRUE(torch::equal(gradient, torch::full_like(gradient, kThreads * kRounds)))
        << name << " from " << gradient.min() << " to " << gradient.max();
  }
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
  EXPECT_EQ(sharded->diagnostics().stats().gradient_buffer_bytes, 0);
}

TEST_P(Threads, InferenceBesideBackward) {
  auto net = testing::seeded([] { return std::make_shared<NetImpl>(); });
  auto plain = testing::seeded([] { return std::make_shared<NetImpl>(); });
  torch::Tensor ids = torch::arange(12).view({2, 6}) % 20;
  torch::Tensor want = plain->forward(ids).detach();
  for (int i = 0; i < 10; ++i) plain->forward(ids).sum().backward();
  auto sharded = shard(*net);
  in_threads([&](int thread) {
    if (thread == 0) {
      for (int i = 0; i < 10; ++i) net->forward(ids).sum().backward();
      return;
    }
    torch::NoGradGuard no_grad;
    for (int i = 0; i < 30; ++i) EXPECT_TRUE(torch::equal(net->forward(ids), want));
  });
  expect_same(gradients_of(*sharded), gradients_of(*plain));
}

// While one thread is inside an operator of a unit, other threads release and use the unit.
TEST_P(Threads, AnOperatorInFlightPinsItsUnit) {
  Bag bag(std::vector<torch::Tensor>{torch::arange(16).to(torch::kFloat)});
  auto sharded = shard(*bag);
  torch::Tensor w = bag->parameters()[0];
  std::atomic<bool> started{false}, done{false};
  inside = [&] {
    started = true;
    while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(raw_sum(w).item<float>(), 120);
  };
  std::thread releaser([&] {
    torch::NoGradGuard no_grad;
    while (!started) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < 50; ++i) {
      sharded->reshard();
      EXPECT_EQ(w.sum().item<float>(), 120);
    }
    done = true;
  });
  {
    torch::NoGradGuard no_grad;
    EXPECT_EQ(call<torch::Tensor(const torch::Tensor&)>("call_inside", w).item<float>(), 120);
  }
  releaser.join();
  inside = {};
}

}  // namespace
}  // namespace fsdp
