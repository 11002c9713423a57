// Tests ShardedGradScaler on one rank against the recorded behavior of torch.amp.GradScaler
// (tests/python/test_grad_scaler_reference.py).
#include "fsdp/grad_scaler.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/files/project_paths.h"
#include "support/training/sharding.h"

namespace fsdp::optim::grad_scaler_test {
namespace {

using nlohmann::json;
using testing::Bag;
using testing::expect_error;
using testing::one_rank_options_for_lists;

const json& reference() {
  static const json file =
      json::parse(std::ifstream(testing::source_folder() + "/src/optim/testing/grad_scaler_reference.json"));
  return file;
}

struct CountingOptimizer {
  int calls = 0;
  void step() { ++calls; }
};

// One parameter on one rank, with a gradient that the test sets.
struct Model {
  explicit Model(int64_t numel = 4, at::ScalarType dtype = at::kFloat)
      : module(std::vector<at::Tensor>{torch::zeros({numel}, dtype)}),
        sharded(fully_shard(*module, one_rank_options_for_lists())) {}
  at::Tensor& gradient() { return sharded->parameters()[0].mutable_grad(); }
  void set_gradient(double value) { gradient() = torch::full_like(sharded->parameters()[0], value).detach(); }

  Bag module;
  std::shared_ptr<ShardedModule> sharded;
};

// Returns a scaler on which scale() was called.
ShardedGradScaler scaler_in_use(const GradScalerOptions& options = {}) {
  ShardedGradScaler scaler(options);
  scaler.scale(torch::ones({}));
  return scaler;
}

GradScalerOptions options_of(const json& scenario) {
  const json& given = scenario.at("options");
  GradScalerOptions options;
  options.init_scale = given.value("init_scale", options.init_scale);
  options.growth_factor = given.value("growth_factor", options.growth_factor);
  options.backoff_factor = given.value("backoff_factor", options.backoff_factor);
  options.growth_interval = given.value("growth_interval", options.growth_interval);
  return options;
}

at::ScalarType dtype_of(const json& scenario) {
  static const std::map<std::string, at::ScalarType> dtypes = {
      {"float16", at::kHalf}, {"bfloat16", at::kBFloat16}, {"float32", at::kFloat}, {"float64", at::kDouble}};
  return dtypes.at(scenario.at("dtype"));
}

std::vector<double> as_vector(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

class AgainstTorch : public ::testing::TestWithParam<std::string> {};

TEST_P(AgainstTorch, SameScalesDecisionsAndGradients) {
  const json& scenario = reference().at("scenarios").at(GetParam());
  const at::ScalarType dtype = dtype_of(scenario);
  const at::Tensor gradient =
      torch::tensor(reference().at("gradient").get<std::vector<double>>(), at::kDouble).to(dtype);
  Model model(gradient.numel(), dtype);
  ShardedGradScaler scaler(options_of(scenario));
  CountingOptimizer optimizer;
  int row_number = 0;
  for (const json& row : scenario.at("rows")) {
    SCOPED_TRACE(row_number++);
    const int calls = optimizer.calls;
    model.gradient() = scaler.scale(gradient);
    if (row.contains("new_scale")) {
      scaler.update(row.at("new_scale").get<double>());
    } else {
      if (row.at("overflow").get<bool>()) model.gradient()[row_number % 4] = row_number % 2 ? INFINITY : NAN;
      scaler.unscale_(*model.sharded);
      const std::vector<double> want = row.at("gradient");
      if (!want.empty()) {
        EXPECT_EQ(as_vector(model.gradient()), want);
      }
      EXPECT_EQ(scaler.step(*model.sharded, optimizer), row.at("stepped").get<bool>());
      scaler.update();
    }
    EXPECT_EQ(optimizer.calls > calls, row.at("stepped").get<bool>());
    EXPECT_EQ(scaler.scale(), row.at("scale").get<double>());
    EXPECT_EQ(scaler.growth_tracker(), row.at("tracker").get<int64_t>());
  }
}

std::vector<std::string> scenario_names() {
  std::vector<std::string> names;
  for (const auto& [name, scenario] : reference().at("scenarios").items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, AgainstTorch, ::testing::ValuesIn(scenario_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST(ShardedGradScaler, ScalesInTheDtypeOfTheOutputs) {
  ShardedGradScaler scaler({.init_scale = 65536});
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const at::Tensor& output : {torch::full({}, 0.25, dtype), torch::full({3}, 0.25, dtype)}) {
      const at::Tensor leaf = output.clone().requires_grad_();
      const at::Tensor scaled = scaler.scale(leaf);
      EXPECT_EQ(scaled.scalar_type(), dtype);
      EXPECT_TRUE(torch::equal(scaled.detach(), torch::full_like(output, 16384)));
      scaled.sum().backward(torch::full({}, 0.5, dtype));
      EXPECT_TRUE(torch::equal(leaf.grad(), torch::full_like(output, 32768)));
    }
  }
  const auto several = scaler.scale(std::vector<at::Tensor>{torch::ones({}), torch::full({}, 3.0, at::kDouble)});
  ASSERT_EQ(several.size(), 2u);
  EXPECT_EQ(several[0].item<float>(), 65536);
  EXPECT_EQ(several[1].item<double>(), 3 * 65536);
  expect_error([&] { scaler.scale(torch::ones({}, at::kLong)); }, {"floating", "Long"});
  expect_error([&] { scaler.scale(at::Tensor()); }, {"undefined"});
}

TEST(ShardedGradScaler, UnscalesByItselfOrOnRequestButOnce) {
  for (bool on_request : {false, true}) {
    Model model;
    ShardedGradScaler scaler = scaler_in_use({.init_scale = 8});
    model.set_gradient(24);
    if (on_request) scaler.unscale_(*model.sharded);
    double seen = 0;
    EXPECT_TRUE(scaler.step(*model.sharded, [&] { seen = model.gradient()[3].item<double>(); }));
    EXPECT_EQ(seen, 3);
    EXPECT_EQ(model.gradient()[0].item<double>(), 3);
  }
}

TEST(ShardedGradScaler, CountsNonFiniteValuesOfOtherRanks) {
  Model model;
  ShardedGradScaler scaler = scaler_in_use({.init_scale = 8});
  model.set_gradient(24);
  scaler.unscale_(*model.sharded, /*others_not_finite=*/true);
  EXPECT_EQ(model.gradient()[3].item<double>(), 3);
  EXPECT_FALSE(scaler.step(*model.sharded, [] { FAIL(); }));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 4);
  scaler.scale(torch::ones({}));
  scaler.unscale_(*model.sharded, /*others_not_finite=*/false);
  EXPECT_TRUE(scaler.step(*model.sharded, [] {}));
}

TEST(ShardedGradScaler, TellsTheNormWithoutWriting) {
  Model model;
  ShardedGradScaler scaler = scaler_in_use({.init_scale = 8});
  model.set_gradient(24);
  EXPECT_EQ(scaler.unscaled_grad_norm(*model.sharded), 6);
  bool stepped = false;
  EXPECT_TRUE(scaler.step(*model.sharded, [&] {
    stepped = true;
    EXPECT_EQ(model.gradient()[3].item<double>(), 24);
  }));
  EXPECT_TRUE(stepped);
  EXPECT_EQ(model.gradient()[3].item<double>(), 24);
  scaler.update();
  EXPECT_EQ(scaler.scale(), 8);
  for (double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    scaler.scale(torch::ones({}));
    model.set_gradient(24);
    model.gradient()[2] = bad;
    EXPECT_FALSE(std::isfinite(scaler.unscaled_grad_norm(*model.sharded)));
    EXPECT_FALSE(scaler.step(*model.sharded, [] { FAIL(); }));
    scaler.update();
  }
  EXPECT_EQ(scaler.scale(), 2);
  scaler.scale(torch::ones({}));
  model.set_gradient(24);
  EXPECT_EQ(scaler.unscaled_grad_norm(*model.sharded, /*others_not_finite=*/true), 24);
  EXPECT_FALSE(scaler.step(*model.sharded, [] { FAIL(); }));
}

TEST(ShardedGradScaler, TakesGradientsOfSeveralDtypes) {
  const std::vector<at::ScalarType> dtypes = {at::kDouble, at::kHalf, at::kFloat, at::kBFloat16, at::kHalf};
  std::vector<at::Tensor> tensors;
  for (at::ScalarType dtype : dtypes) tensors.push_back(torch::zeros({3}, dtype));
  Bag model(tensors);
  auto sharded = fully_shard(*model, one_rank_options_for_lists());
  const std::vector<at::Tensor> leaves = sharded->parameters();
  ShardedGradScaler scaler = scaler_in_use({.init_scale = 64});
  for (size_t bad = 0; bad <= leaves.size(); ++bad) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      leaves[i].mutable_grad() = torch::full({3}, i == bad ? NAN : 192.0, leaves[i].scalar_type());
    }
    EXPECT_EQ(scaler.step(*sharded, [] {}), bad == leaves.size()) << bad;
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(i == bad || (leaves[i].grad() == 3).all().item<bool>()) << leaves[i].grad();
    }
    scaler.update(64.0);
  }
}

TEST(ShardedGradScaler, RefusesCallsOutOfOrder) {
  Model model;
  CountingOptimizer optimizer;
  ShardedGradScaler scaler;
  expect_error([&] { scaler.unscale_(*model.sharded); }, {"unscale_() was called before scale()"});
  expect_error([&] { scaler.unscaled_grad_norm(*model.sharded); }, {"unscaled_grad_norm() was called before scale()"});
  expect_error([&] { scaler.step(*model.sharded, optimizer); }, {"step() was called before scale()"});
  expect_error([&] { scaler.update(); }, {"update() was called before scale()"});
  expect_error([&] { scaler.update(2.0); }, {"update() was called before scale()"});
  scaler.scale(torch::ones({}));
  expect_error([&] { scaler.update(); }, {"no gradients were checked"});
  for (int iteration = 0; iteration < 2; ++iteration) {
    iteration == 0 ? scaler.unscale_(*model.sharded) : void(scaler.unscaled_grad_norm(*model.sharded));
    expect_error([&] { scaler.unscale_(*model.sharded); },
                 {"unscale_(): unscale_() or unscaled_grad_norm() has already been called on this model since the last "
                  "update()"});
    expect_error([&] { scaler.unscaled_grad_norm(*model.sharded); },
                 {"unscaled_grad_norm(): unscale_() or unscaled_grad_norm() has already been called on this model "
                  "since the last update()"});
    scaler.step(*model.sharded, optimizer);
    expect_error([&] { scaler.step(*model.sharded, optimizer); }, {"step() has already been called"});
    expect_error([&] { scaler.unscale_(*model.sharded); }, {"unscale_() is being called after step()"});
    expect_error([&] { scaler.unscaled_grad_norm(*model.sharded); },
                 {"unscaled_grad_norm() is being called after step()"});
    iteration == 0 ? scaler.update() : scaler.update(4.0);
    expect_error([&] { scaler.update(); }, {"no gradients were checked"});
  }
  EXPECT_EQ(optimizer.calls, 2);
}

TEST(ShardedGradScaler, AnOptimizerThatThrowsMayBeCalledAgain) {
  Model model;
  model.set_gradient(8);
  ShardedGradScaler scaler = scaler_in_use({.init_scale = 4});
  expect_error([&] { scaler.step(*model.sharded, [] { throw std::runtime_error("no"); }); }, {"no"});
  EXPECT_TRUE(scaler.step(*model.sharded, [] {}));
  EXPECT_EQ(model.gradient()[0].item<double>(), 2) << "unscaled once";
}

TEST(ShardedGradScaler, DecidesForEachModelAndUpdatesOverAll) {
  Model good, bad;
  CountingOptimizer optimizer;
  for (bool bad_first : {false, true}) {
    ShardedGradScaler scaler = scaler_in_use({.init_scale = 16});
    good.set_gradient(16);
    bad.set_gradient(INFINITY);
    Model* order[] = {bad_first ? &bad : &good, bad_first ? &good : &bad};
    for (Model* model : order) EXPECT_EQ(scaler.step(*model->sharded, optimizer), model == &good);
    scaler.update();
    EXPECT_EQ(scaler.scale(), 8);
    EXPECT_EQ(scaler.growth_tracker(), 0);
    // The findings of the last iteration are forgotten, also for a model that takes no part in this one.
    EXPECT_TRUE(scaler.step(*good.sharded, optimizer));
    scaler.update();
    EXPECT_EQ(scaler.scale(), 8);
    EXPECT_EQ(scaler.growth_tracker(), 1);
  }
  EXPECT_EQ(optimizer.calls, 4);
}

TEST(ShardedGradScaler, KeepsTheScaleAmongNormalNumbers) {
  Model model;
  ShardedGradScaler scaler = scaler_in_use({.init_scale = 1e-37, .backoff_factor = 0.1});
  for (int step = 0; step < 3; ++step) {
    model.set_gradient(NAN);
    EXPECT_FALSE(scaler.step(*model.sharded, [] {}));
    scaler.update();
  }
  EXPECT_EQ(scaler.scale(), std::numeric_limits<float>::min());
  model.set_gradient(std::numeric_limits<float>::min());
  EXPECT_TRUE(scaler.step(*model.sharded, [] {}));
  EXPECT_EQ(model.gradient()[0].item<double>(), 1);
}

TEST(ShardedGradScaler, LeavesEverythingAloneWhenDisabled) {
  Model model;
  model.set_gradient(INFINITY);
  ShardedGradScaler scaler({.enabled = false});
  const at::Tensor loss = torch::ones({}, at::kLong);
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  scaler.unscale_(*model.sharded);
  scaler.unscale_(*model.sharded);
  EXPECT_EQ(scaler.unscaled_grad_norm(*model.sharded), INFINITY);
  CountingOptimizer optimizer;
  EXPECT_TRUE(scaler.step(*model.sharded, optimizer));
  EXPECT_TRUE(scaler.step(*model.sharded, optimizer));
  EXPECT_EQ(optimizer.calls, 2);
  scaler.update();
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_EQ(scaler.growth_tracker(), 0);
  EXPECT_FALSE(scaler.state_dict());
  scaler.load_state_dict(std::nullopt);
}

TEST(ShardedGradScaler, ContinuesFromItsState) {
  Model model;
  const GradScalerOptions options{.init_scale = 100, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 4};
  ShardedGradScaler first = scaler_in_use(options), second = scaler_in_use();
  for (int step = 0; step < 9; ++step) {
    if (step == 3) second.load_state_dict(first.state_dict());
    for (ShardedGradScaler* scaler : {&first, &second}) {
      model.set_gradient(step == 1 || step == 8 ? NAN : 1.0);
      scaler->step(*model.sharded, [] {});
      scaler->update();
    }
    EXPECT_EQ(first.scale() == second.scale(), step >= 3) << step;
    EXPECT_EQ(first.growth_tracker(), second.growth_tracker()) << step;
  }
  EXPECT_EQ(first.scale(), 100 * 0.25 * 3 * 0.25);
  expect_error([&] { first.load_state_dict(std::nullopt); }, {"state is empty"});
  expect_error([&] { first.load_state_dict(GradScalerState{.growth_tracker = -1}); }, {"growth_tracker is -1"});
}

TEST(ShardedGradScaler, RefusesOptionsOutOfRange) {
  const auto refuse = [](const GradScalerOptions& options, const char* text) {
    expect_error([&] { ShardedGradScaler scaler(options); }, {text});
  };
  for (double scale : {0.0, -1.0, 1e-40, 1e39, double(INFINITY), double(NAN)}) {
    refuse({.init_scale = scale}, "init_scale is");
  }
  for (double factor : {1.0, 0.5, double(INFINITY), double(NAN)}) refuse({.growth_factor = factor}, "growth_factor is");
  for (double factor : {0.0, 1.0, -0.5, double(NAN)}) refuse({.backoff_factor = factor}, "backoff_factor is");
  refuse({.growth_interval = 0}, "growth_interval is 0");
  ShardedGradScaler scaler = scaler_in_use();
  for (double scale : {0.0, 1e39, double(NAN)}) expect_error([&] { scaler.update(scale); }, {"new_scale is"});
}

}  // namespace
}  // namespace fsdp::optim::grad_scaler_test
