// Tests unusual uses of parameters (views, indexing, conversions, linear algebra): in the strictest mode, sharded
// training gives the same bits as plain training.
#include "engine/engine.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::expect_trains_alike;
using testing::gradients_of;
using testing::numbers;
using testing::same_bits;
using testing::shard_strictly;

struct MatrixImpl : torch::nn::Module {
  MatrixImpl() {
    w = register_parameter("w", numbers({8, 8}));
    v = register_parameter("v", numbers({6, 4, 2}));
    u = register_parameter("u", numbers({8}));
    i = register_parameter("i", torch::arange(8).flip(0), false);
    x = numbers({4, 8});
  }
  torch::Tensor w, v, u, i, x;
};

struct Use {
  const char* name;
  torch::Tensor (*loss)(MatrixImpl& m);
};

const std::vector<Use> kUses = {
    {"as_strided",
     [](MatrixImpl& m) {
       torch::Tensor a = m.w.as_strided({4, 4}, {16, 2}, 1);
       return a.mm(a).sum();
     }},
    {"chunk_select_expand",
     [](MatrixImpl& m) {
       auto halves = m.w.chunk(2);
       torch::Tensor part = m.w.slice(0, 1, 5).slice(1, 2, 6);
       return (halves[0] * halves[1]).sum() + part.unsqueeze(0).expand({3, 4, 4}).pow(2).sum() + m.w[3].prod();
     }},
    {"split_unbind_stack",
     [](MatrixImpl& m) {
       auto rows = m.w.unbind();
       auto parts = m.w.split_with_sizes({1, 3, 4}, 1);
       return torch::stack(rows, 1).mm(parts[2]).pow(2).sum() + torch::stack({rows[0], m.u}).prod();
     }},
    {"unfold_diagonal",
     [](MatrixImpl& m) {
       return m.w.unfold(0, 2, 2).pow(2).sum() + m.w.diagonal().exp().sum() + m.w.diagonal(1).prod();
     }},
    {"view_as_complex",
     [](MatrixImpl& m) {
       torch::Tensor z = torch::view_as_complex(m.v);
       return z.abs().sum() + torch::view_as_real(z * z.conj()).sum() + torch::real(z).pow(2).sum();
     }},
    {"transpose_reshape_contiguous",
     [](MatrixImpl& m) {
       return m.x.mm(m.w.t().reshape({4, 16}).reshape({8, 8})).exp().sum() + m.w.t().contiguous().pow(2).sum() +
              m.w.t().flatten().pow(3).sum() + m.v.permute({2, 0, 1}).movedim(0, 2).flatten(1).pow(2).sum();
     }},
    {"dtype_conversions",
     [](MatrixImpl& m) {
       return m.w.to(torch::kDouble).pow(2).sum().to(torch::kFloat) + m.u.to(torch::kBFloat16).sum().to(torch::kFloat) +
              m.w.to(m.u.options()).sum() + m.u.type_as(m.x).prod();
     }},
    {"index",
     [](MatrixImpl& m) {
       return m.x.index({torch::indexing::Slice(), m.i}).mm(m.w.index({m.i})).pow(2).sum() +
              m.w.index({m.i, m.i}).prod() + m.w.gather(0, m.i.expand({8, 8})).pow(2).sum();
     }},
    {"index_put",
     [](MatrixImpl& m) {
       return torch::index_put(m.w, {m.i, m.i}, m.u).pow(2).sum() + torch::where(m.w > 0, m.w, m.u).pow(2).sum() +
              m.x.clone().index_add_(0, torch::tensor({1, 2}), m.w.narrow(0, 0, 2)).pow(2).sum();
     }},
    {"foreach",
     [](MatrixImpl& m) {
       torch::Tensor sum = torch::zeros({});
       for (const torch::Tensor& t : torch::_foreach_mul({m.w, m.u}, 2.0)) sum = sum + t.pow(2).sum();
       return sum;
     }},
    {"block_diag_einsum_cartesian",
     [](MatrixImpl& m) {
       return torch::block_diag({m.w, m.u.unsqueeze(0)}).pow(2).sum() + torch::einsum("ij,j,i->", {m.w, m.u, m.u}) +
              torch::cartesian_prod({m.u, m.u}).pow(2).sum();
     }},
    {"cat_as_strided_of_views",
     [](MatrixImpl& m) {
       torch::Tensor a = torch::cat({m.w.t().narrow(0, 1, 3), m.x}, 0);
       return a.pow(2).sum() + m.w.t().as_strided({3, 3}, {9, 1}, 2).det();
     }},
    {"copy_into_others",
     [](MatrixImpl& m) {
       torch::Tensor buffer = torch::zeros({9, 8});
       buffer.narrow(0, 0, 8).copy_(m.w);
       buffer.select(0, 8).add_(m.u);
       torch::Tensor out = torch::empty({4, 8});
       {
         torch::NoGradGuard no_grad;
         torch::mm_out(out, m.x, m.w);
       }
       return buffer.pow(2).sum() + (out * m.u).sum();
     }},
    {"linear_algebra",
     [](MatrixImpl& m) {
       torch::Tensor spd = m.w.mm(m.w.t()) + torch::eye(8) * 4;
       return torch::linalg_cholesky(spd).pow(2).sum() + torch::logdet(spd) + torch::linalg_solve(spd, m.u).sum();
     }},
    {"broadcast_and_scalars",
     [](MatrixImpl& m) {
       torch::Tensor scale = torch::full({}, m.u[3].item<float>());
       return (m.w * m.u + m.u.unsqueeze(1)).pow(2).sum() * scale + m.w.mean() + m.w.max() + m.w.norm() +
              std::get<0>(m.w.topk(3)).sum() + m.w.softmax(1).log().sum();
     }},
    {"attention",
     [](MatrixImpl& m) {
       torch::Tensor q = m.w.view({1, 2, 4, 8}), k = m.v.view({1, 2, 3, 8});
       return torch::scaled_dot_product_attention(q, k, k).pow(2).sum();
     }},
    {"gradient_penalty",
     [](MatrixImpl& m) {
       torch::Tensor x = m.x.clone().set_requires_grad(true);
       torch::Tensor y = torch::tanh(x.mm(m.w)).mv(m.u).sum();
       torch::Tensor g = torch::autograd::grad({y}, {x}, {}, c10::nullopt, true)[0];
       return y + g.pow(2).sum();
     }},
    {"same_parameter_many_times",
     [](MatrixImpl& m) {
       torch::Tensor y = m.x;
       for (int k = 0; k < 4; ++k) y = torch::tanh(y.mm(k % 2 ? m.w : m.w.t()) + m.u);
       return y.sum();
     }},
    {"the_parameter_itself", [](MatrixImpl& m) { return m.u[2] + m.w.select(0, 1)[3]; }},
};

class OddUse : public ::testing::TestWithParam<Use> {};
INSTANTIATE_TEST_SUITE_P(All, OddUse, ::testing::ValuesIn(kUses),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(OddUse, TrainsAlikeInOneUnit) {
  expect_trains_alike([] { return std::make_shared<MatrixImpl>(); }, [](auto& m) { return GetParam().loss(*m); });
}

// Puts each parameter into its own unit, so that operators on two parameters pin two units.
TEST_P(OddUse, GradientsWithAUnitForEachParameter) {
  MatrixImpl plain;
  struct OneImpl : torch::nn::Module {
    explicit OneImpl(const torch::Tensor& tensor) {
      register_parameter("p", tensor.detach().clone(), tensor.requires_grad());
    }
  };
  torch::nn::ModuleList units;
  MatrixImpl model;
  for (torch::Tensor* tensor : {&model.w, &model.v, &model.u, &model.i}) {
    auto one = std::make_shared<OneImpl>(*tensor);
    *tensor = one->parameters()[0];
    units->push_back(one);
  }
  auto sharded = shard_strictly(*units);
  ASSERT_EQ(sharded->engine().units().size(), 4);
  torch::Tensor want = GetParam().loss(plain), got = GetParam().loss(model);
  EXPECT_TRUE(same_bits(got.detach(), want.detach()));
  want.backward();
  got.backward();
  auto gradients = gradients_of(*sharded);
  EXPECT_TRUE(same_bits(gradients.at("0.p"), plain.w.grad()));
  EXPECT_TRUE(same_bits(gradients.at("1.p"), plain.v.grad()));
  EXPECT_TRUE(same_bits(gradients.at("2.p"), plain.u.grad()));
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
}

}  // namespace
}  // namespace fsdp
