// Tests running statistics of normalisations under mixed precision: the kernels update them in their own dtype,
// whatever the dtype of parameters and inputs.
#include "fsdp/fsdp.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::numbers;

// A normalisation over 4 channels, and the sizes of an input for it.
struct Kind {
  const char* name;
  std::function<torch::nn::AnyModule()> make;
  std::vector<int64_t> input;
};

std::vector<Kind> kinds() {
  using namespace torch::nn;
  return {{"batch_norm", [] { return AnyModule(BatchNorm1d(4)); }, {6, 4}},
          {"batch_norm_2d", [] { return AnyModule(BatchNorm2d(4)); }, {3, 4, 2, 5}},
          {"cumulative", [] { return AnyModule(BatchNorm1d(BatchNorm1dOptions(4).momentum(std::nullopt))); }, {6, 4}},
          {"instance_norm",
           [] { return AnyModule(InstanceNorm1d(InstanceNorm1dOptions(4).affine(true).track_running_stats(true))); },
           {3, 4, 7}}};
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Kind& kind) : norm(kind.make()) {
    scale = register_parameter("scale", torch::full({1}, 1.5));
    register_module("norm", norm.ptr());
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm.forward(x * scale); }
  torch::Tensor scale;
  torch::nn::AnyModule norm;
};

struct Case {
  at::ScalarType model, param;  // dtypes: of parameters and buffers; of computation
  std::optional<at::ScalarType> buffer;
  double tolerance;
};

std::map<std::string, torch::Tensor> buffers_of(torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& entry : module.named_buffers()) result[entry.key()] = entry.value().detach().to(at::kDouble).clone();
  return result;
}

class RunningStatistics : public ::testing::TestWithParam<Case> {};

TEST_P(RunningStatistics, AreThoseOfFullPrecision) {
  const Case& at = GetParam();
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    auto plain = std::make_shared<NetImpl>(kind);
    plain->to(at::kDouble);
    auto net = std::make_shared<NetImpl>(kind);
    net->to(at.model);
    Options options = testing::one_rank_options();
    options.param_dtype = at.param;
    options.buffer_dtype = at.buffer;
    auto sharded = fully_shard(*net, options);
    const auto dtypes = [&] {
      std::vector<at::ScalarType> result;
      for (const torch::Tensor& buffer : net->buffers()) result.push_back(buffer.scalar_type());
      return result;
    };
    const auto before = dtypes();
    const auto expect_alike = [&](const torch::Tensor& x) {
      const torch::Tensor want = plain->forward(x), got = net->forward(x.to(at.model));
      EXPECT_TRUE(torch::allclose(got.to(at::kDouble), want, 0.05, 0.05)) << got << want;
      const auto statistics = buffers_of(*plain);
      for (const auto& [name, values] : buffers_of(*net)) {
        EXPECT_TRUE(torch::allclose(values, statistics.at(name), at.tolerance, at.tolerance))
            << name << ": " << values << "\nin full precision: " << statistics.at(name);
      }
      return got;
    };
    for (int step = 0; step < 5; ++step) {
      expect_alike(numbers(kind.input).to(at::kDouble) * 2 + 0.7 * step).sum().backward();
    }
    net->eval();
    plain->eval();
    expect_alike(numbers(kind.input).to(at::kDouble));
    EXPECT_EQ(dtypes(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunningStatistics,
                         ::testing::Values(Case{at::kFloat, at::kBFloat16, std::nullopt, 0.02},
                                           Case{at::kFloat, at::kHalf, std::nullopt, 0.005},
                                           Case{at::kFloat, at::kBFloat16, at::kBFloat16, 0.05},
                                           Case{at::kDouble, at::kFloat, std::nullopt, 1e-5},
                                           Case{at::kFloat, at::kDouble, std::nullopt, 1e-5},
                                           Case{at::kFloat, at::kFloat, at::kBFloat16, 0.05},
                                           Case{at::kFloat, at::kFloat, at::kDouble, 1e-5},
                                           Case{at::kBFloat16, at::kFloat, std::nullopt, 0.05}),
                         [](const auto& info) {
                           const Case& at = info.param;
                           return c10::str(c10::toString(at.model), "_as_", c10::toString(at.param),
                                           at.buffer ? c10::str("_buffers_", c10::toString(*at.buffer)) : "");
                         });

}  // namespace
}  // namespace fsdp
