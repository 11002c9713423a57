// Tests deferred initialisation against ordinary construction with the same seed: bit-equal values, generators in the
// same state, and no memory until replay.
#include "fsdp/deferred_init.h"

#include <cstring>

#include "deferred/deferred_storage.h"

namespace fsdp::deferred_init_test {
namespace {

using torch::nn::Module;
using ModulePtr = std::shared_ptr<Module>;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor x = a.contiguous(), y = b.contiguous();
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void expect_same_module(Module& deferred, Module& eager) {
  const auto parameters = eager.named_parameters(), buffers = eager.named_buffers();
  const auto deferred_parameters = deferred.named_parameters(), deferred_buffers = deferred.named_buffers();
  for (const auto& entry : parameters) {
    const at::Tensor* value = deferred_parameters.find(entry.key());
    ASSERT_TRUE(value) << entry.key();
    EXPECT_TRUE(same_bits(*value, entry.value())) << entry.key();
    EXPECT_EQ(value->requires_grad(), entry.value().requires_grad()) << entry.key();
    EXPECT_TRUE(value->is_leaf()) << entry.key();
  }
  for (const auto& entry : buffers) {
    EXPECT_TRUE(same_bits(*deferred_buffers.find(entry.key()), entry.value())) << entry.key();
  }
}

// Expects that `build` makes the same with and without the guard, from the same seed.
template <typename Build>
void expect_same_when_deferred(const Build& build) {
  torch::manual_seed(3);
  auto eager = build();
  torch::manual_seed(3);
  auto module = deferred_init(build);
  materialize(*module);
  expect_same_module(*module, *eager);
}

// Expects that no tensor of the module except small constants has memory.
void expect_no_memory(Module& module) {
  for (const auto& entry : module.named_parameters()) {
    EXPECT_TRUE(is_deferred(entry.value())) << entry.key();
    EXPECT_TRUE(!deferred::find(entry.value())->resident || entry.value().nbytes() <= 4096) << entry.key();
  }
}

struct Case {
  std::string name;
  std::function<ModulePtr()> build;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

// A collection of initialisations as they occur in practice.
struct OddInits : Module {
  OddInits() {
    torch::NoGradGuard no_grad;
    a = register_parameter("a", torch::randn({67, 31}));
    b = register_parameter("b", torch::empty({67, 31}));
    torch::nn::init::orthogonal_(b);
    c = register_parameter("c", torch::empty({41, 43}));
    torch::nn::init::sparse_(c, 0.3);
    d = register_parameter("d", a.clone() * 2 + b);  // reads other parameters
    e = register_parameter("e", torch::empty({7, 5, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast));
    torch::nn::init::kaiming_normal_(e);
    f = register_parameter("f", torch::rand({13}).to(torch::kBFloat16));
    g = register_parameter("g", torch::zeros({29, 17}));
    g.narrow(0, 3, 11).normal_();  // initialises a part of it
    g[28].copy_(torch::arange(17));
    g.index_put_({torch::tensor({1, 2})}, 5.0);
    a.mul_(0.5).add_(torch::randn({31}));  // changed after its initialisation, with broadcasting
    b.uniform_(-1, 1);                     // initialised again
    h = register_buffer("h", torch::randperm(1234));
    i = register_buffer("i", torch::outer(torch::arange(100), torch::tensor(std::vector<float>{1, 2, 3})));
    j = register_buffer("j", torch::bernoulli(torch::rand({53, 3})));  // draws with probabilities that were drawn
    k = register_parameter("k", torch::randn_like(d).t().contiguous());
    auto [q, r] = torch::linalg_qr(torch::randn({40, 40}));
    l = register_parameter("l", q);
    m = register_parameter("m", torch::cat({a.slice(1, 0, 5), b.slice(1, 5, 9)}, 1));
    n = register_buffer("n", torch::where(g > 0, g, torch::full_like(g, 7)));
    o = register_buffer("o", torch::multinomial(torch::rand({20}), 5));
  }
  at::Tensor a, b, c, d, e, f, g, h, i, j, k, l, m, n, o;
};

struct Net : Module {
  Net()
      : embed(register_module("embed", torch::nn::Embedding(101, 24))),
        first(register_module("first", torch::nn::Linear(24, 37))),
        second(register_module("second", torch::nn::Linear(37, 24))),
        norm(register_module("norm", torch::nn::BatchNorm1d(24))) {
    table = torch::outer(torch::arange(64, torch::kFloat), torch::pow(10.0, torch::arange(0, 40) / -40.0)).sin();
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    at::Tensor x = embed(tokens);  // [n, 24]
    x = x + table.slice(0, 0, x.size(0)).slice(1, 0, 24);
    return second(torch::relu(first(norm(x))));
  }
  torch::nn::Embedding embed;
  torch::nn::Linear first, second;
  torch::nn::BatchNorm1d norm;
  at::Tensor table;  // neither a registered parameter nor a buffer
};

void init_weights(Module& module) {
  torch::NoGradGuard no_grad;
  if (auto* linear = module.as<torch::nn::Linear>()) {
    linear->weight.normal_(0, 0.02);
    linear->bias.zero_();
  } else if (auto* embedding = module.as<torch::nn::Embedding>()) {
    embedding->weight.normal_(0, 0.02);
    embedding->weight[1].zero_();
  }
}

ModulePtr with_init_weights() {
  auto net = std::make_shared<Net>();
  net->apply(init_weights);
  return net;
}

std::vector<Case> cases() {
  namespace nn = torch::nn;
  return {
      {"linear", [] { return nn::Linear(67, 31).ptr(); }},
      {"no_bias", [] { return nn::Linear(nn::LinearOptions(5, 3).bias(false)).ptr(); }},
      {"embedding", [] { return nn::Embedding(nn::EmbeddingOptions(101, 17).padding_idx(3)).ptr(); }},
      {"convolution", [] { return nn::Conv2d(nn::Conv2dOptions(3, 7, 3)).ptr(); }},
      {"norms", [] { return nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({37})), nn::BatchNorm1d(11)).ptr(); }},
      {"lstm", [] { return nn::LSTM(nn::LSTMOptions(13, 17).num_layers(2).bidirectional(true)).ptr(); }},
      {"gru", [] { return nn::GRU(nn::GRUOptions(13, 17)).ptr(); }},
      {"transformer", [] { return nn::Transformer(nn::TransformerOptions(24, 2, 2, 2)).ptr(); }},
      {"bilinear", [] { return nn::Bilinear(5, 7, 3).ptr(); }},
      {"odd_inits", [] { return std::make_shared<OddInits>(); }},
      {"net", [] { return std::make_shared<Net>(); }},
      {"init_weights", with_init_weights},
      {"low_precision",
       [] {
         ModulePtr net = with_init_weights();
         net->to(torch::kBFloat16);
         return net;
       }},
      {"cloned", [] { return nn::Sequential(nn::Linear(31, 17), nn::LSTM(5, 7)).ptr()->clone(); }},
      {"tied",
       [] {
         nn::Sequential two(nn::Linear(31, 31), nn::Linear(31, 31));
         two[1]->as<nn::Linear>()->weight = two[1]->register_parameter("tied", two[0]->as<nn::Linear>()->weight);
         return two.ptr();
       }},
  };
}

class DeferredInit : public ::testing::TestWithParam<Case> {};

TEST_P(DeferredInit, EqualsOrdinaryConstruction) {
  torch::manual_seed(7);
  ModulePtr eager = GetParam().build();
  at::Tensor after = torch::rand({5});
  torch::manual_seed(7);
  ModulePtr module = deferred_init(GetParam().build);
  expect_no_memory(*module);
  materialize(*module);
  expect_same_module(*module, *eager);
  EXPECT_TRUE(same_bits(torch::rand({5}), after)) << "the generator is not where construction leaves it";
}

// Materializes each parameter separately, the last ones first: every draw is out of order.
TEST_P(DeferredInit, HoldsInAnyOrder) {
  torch::manual_seed(7);
  ModulePtr eager = GetParam().build();
  at::Tensor after = torch::rand({5});
  torch::manual_seed(7);
  ModulePtr module = deferred_init(GetParam().build);
  std::vector<at::Tensor> parameters = module->parameters(), buffers = module->buffers();
  for (auto& list : {buffers, parameters}) {
    for (auto it = list.rbegin(); it != list.rend(); ++it) {
      materialize(*it);
      EXPECT_FALSE(is_deferred(*it));
    }
  }
  expect_same_module(*module, *eager);
  EXPECT_TRUE(same_bits(torch::rand({5}), after));
}

INSTANTIATE_TEST_SUITE_P(Modules, DeferredInit, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(DeferredInitAfterwards, ModulesMayBeInitialisedAgain) {
  torch::manual_seed(3);
  auto eager = std::make_shared<Net>();
  eager->apply(init_weights);
  torch::manual_seed(3);
  auto module = deferred_init([] { return std::make_shared<Net>(); });
  module->apply(init_weights);
  expect_no_memory(*module);
  materialize(*module);
  expect_same_module(*module, *eager);
}

TEST(DeferredInitAfterwards, TwoModulesDrawOneAfterTheOther) {
  torch::manual_seed(3);
  auto eager_a = std::make_shared<Net>(), eager_b = std::make_shared<Net>();
  torch::manual_seed(3);
  auto a = deferred_init([] { return std::make_shared<Net>(); });
  auto b = deferred_init([] { return std::make_shared<Net>(); });
  materialize(*b);
  materialize(*a);
  expect_same_module(*a, *eager_a);
  expect_same_module(*b, *eager_b);
}

TEST(DeferredInitAfterwards, TablesOutsideOfTheModulesListsWork) {
  torch::manual_seed(3);
  auto eager = std::make_shared<Net>();
  torch::manual_seed(3);
  auto module = deferred_init([] { return std::make_shared<Net>(); });
  EXPECT_FALSE(deferred::find(module->table)->resident);
  materialize(*module);
  at::Tensor tokens = torch::tensor({3, 1, 4, 1, 5, 9, 2, 6});
  for (int step = 0; step < 2; ++step) {
    at::Tensor expected = eager->forward(tokens).sum(), actual = module->forward(tokens).sum();
    EXPECT_TRUE(same_bits(actual, expected));
    expected.backward();
    actual.backward();
  }
  EXPECT_TRUE(deferred::find(module->table)->resident);  // its value is computed only once
  for (const auto& parameter : eager->named_parameters()) {
    EXPECT_TRUE(same_bits(module->named_parameters()[parameter.key()].grad(), parameter.value().grad()));
  }
}

TEST(DeferredInitAfterwards, TheSameSeedTwiceMakesTheSameTwice) {
  torch::manual_seed(3);
  auto eager = std::make_shared<Net>();
  at::Tensor after = torch::rand({5});
  auto build = [] {
    torch::manual_seed(3);
    return deferred_init([] { return std::make_shared<Net>(); });
  };
  auto a = build(), b = build();
  materialize(*a);
  materialize(*b);
  expect_same_module(*a, *eager);
  expect_same_module(*b, *eager);
  EXPECT_TRUE(same_bits(torch::rand({5}), after));
}

// Uses operators whose results may be undefined, or in lists.
TEST(DeferredInitAfterwards, ResultsOfAllShapesAreFound) {
  auto build = [] {
    torch::NoGradGuard no_grad;
    torch::nn::ParameterList list;
    auto [norm, mean, deviation] = torch::native_layer_norm(torch::randn({60, 70}), {70}, {}, {}, 1e-5);
    for (const at::Tensor& tensor : {norm, mean, deviation}) list->append(tensor.clone());
    for (const at::Tensor& part : torch::split_with_sizes_copy(torch::randn({90, 50}), {20, 70})) list->append(part);
    auto [values, indices] = torch::sort(torch::rand({3000}));
    list->append(values);
    return list.ptr();
  };
  expect_same_when_deferred(build);
}

TEST(DeferredInitAfterwards, GeneratorsUsedInBetweenAreLeftAlone) {
  torch::manual_seed(3);
  auto eager = std::make_shared<Net>();
  torch::manual_seed(3);
  auto module = deferred_init([] { return std::make_shared<Net>(); });
  torch::manual_seed(11);
  at::Tensor first = torch::rand({3});
  materialize(*module);
  at::Tensor second = torch::rand({3});
  expect_same_module(*module, *eager);
  torch::manual_seed(11);
  EXPECT_TRUE(same_bits(torch::rand({3}), first));
  EXPECT_TRUE(same_bits(torch::rand({3}), second));
}

TEST(DeferredInitAfterwards, SeedsMayBeSetInside) {
  auto build = [] {
    torch::manual_seed(1);
    auto first = std::make_shared<Net>();
    torch::manual_seed(2);
    first->register_module("more", torch::nn::Linear(31, 17));
    auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
    at::NoGradGuard no_grad;
    first->first->weight.normal_(0, 1, generator);
    first->second->weight.uniform_(0, 1, generator);
    return first;
  };
  auto eager = build();
  auto module = deferred_init(build);
  materialize(*module);
  expect_same_module(*module, *eager);
}

// Draws under the guard into a tensor that existed before.
TEST(DeferredInitAfterwards, OrdinaryDrawsKeepTheirPlace) {
  auto build = [](at::Tensor& there) {
    auto net = std::make_shared<Net>();
    there.normal_();
    net->register_module("more", torch::nn::Linear(31, 17));
    return net;
  };
  at::Tensor expected = torch::empty({100}), actual = torch::empty({100});
  torch::manual_seed(3);
  auto eager = build(expected);
  torch::manual_seed(3);
  auto module = deferred_init([&] { return build(actual); });
  EXPECT_TRUE(same_bits(actual, expected));
  materialize(*module);
  expect_same_module(*module, *eager);
}

// Draws whose results nobody needs any more, and which read the results of other draws.
TEST(DeferredInitAfterwards, DroppedDrawsKeepTheirPlace) {
  auto build = [] {
    torch::NoGradGuard no_grad;
    auto net = std::make_shared<Net>();
    at::Tensor dropped = torch::bernoulli(at::normal(torch::rand({3000}), 1.0).sigmoid());
    dropped = torch::Tensor();
    at::Tensor kept = torch::rand({31, 17});
    net->register_module("more", torch::nn::Linear(31, 17));
    net->first->weight.mul_(torch::bernoulli(kept).mean());
    kept.mul_(torch::poisson(torch::rand({31, 17})));
    net->register_module("last", torch::nn::Linear(31, 17));
    return net;
  };
  expect_same_when_deferred(build);
}

TEST(DeferredInitAfterwards, ValuesCanBeAskedFor) {
  auto build = [] {
    auto net = std::make_shared<Net>();
    torch::NoGradGuard no_grad;
    double norm = net->first->weight.norm().item<double>();
    net->second->weight.mul_(1 / norm);
    return net;
  };
  expect_same_when_deferred(build);
}

}  // namespace
}  // namespace fsdp::deferred_init_test
