// Tests policies that choose units, and the description of units.
#include "fsdp/fully_shard.h"

#include "engine/engine.h"
#include "frontend/testing/outer_net.h"
#include "fsdp/backends.h"
#include "fsdp/fsdp.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::frontend::unit_policies_test {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::make_outer;
using testing::PairImpl;
using testing::plain_options;
using testing::run_ranks;
using testing::units_of;

TEST(Policies, Size) {
  auto units = [](int64_t min_numel) {
    auto net = make_outer();
    Options options = plain_options();
    options.auto_wrap_policy = size_policy(min_numel);
    std::vector<std::string> names;
    for (const auto& unit : fully_shard(*net, options)->engine().units()) names.push_back(unit->name());
    return names;
  };
  // left has 9 elements, right 8, a pair 19.
  EXPECT_THAT(units(9), ElementsAre("a.left", "a", "b.left", "b", "root"));
  EXPECT_THAT(units(10), ElementsAre("a", "b", "root"));
  EXPECT_THAT(units(19), ElementsAre("a", "b", "root"));
  EXPECT_THAT(units(20), ElementsAre("root"));
  expect_error([] { size_policy(0); }, {"positive"});
}

TEST(Policies, SizePassesListsOver) {
  struct NestedImpl : torch::nn::Module {
    NestedImpl() {
      layers = register_module("layers", torch::nn::ModuleList(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2)));
      chain = register_module("chain", torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2)));
    }
    torch::nn::ModuleList layers;
    torch::nn::Sequential chain;
  };
  NestedImpl net;
  Options options = plain_options();
  options.auto_wrap_policy = size_policy(7);
  EXPECT_THAT(units_of(*fully_shard(net, options)),
              ElementsAre("chain: chain.0.weight chain.0.bias chain.1.weight chain.1.bias",
                          "root: layers.0.weight layers.0.bias layers.1.weight layers.1.bias"));
}

TEST(Policies, Names) {
  auto net = make_outer();
  Options options = plain_options();
  options.auto_wrap_policy = module_name_policy({"Pair"});
  auto sharded = fully_shard(*net, options);
  EXPECT_EQ(sharded->engine().units().size(), 3);
  EXPECT_EQ(module_class_name(*net), "Outer");
  EXPECT_EQ(module_class_name(*net->a->left), "Linear");
  expect_error([] { module_name_policy({}); }, {"no class names"});
}

TEST(Policies, AreAskedBottomUpWithTheRemainingParameters) {
  auto net = make_outer();
  std::vector<std::string> asked;
  Options options = plain_options();
  options.auto_wrap_policy = [&](const WrapCandidate& candidate) {
    asked.push_back(candidate.fqn + " " + std::to_string(candidate.unassigned_numel));
    return candidate.fqn == "a.left";
  };
  fully_shard(*net, options);
  EXPECT_THAT(asked, ElementsAre("a.left 9", "a.right 8", "a 10", "b.left 9", "b.right 8", "b 19"));
}

// ---- describing

TEST(DescribeUnits, TellsUnitsSizesPaddingAndOwners) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    torch::nn::Linear linear(4, 3);
    linear->bias.set_requires_grad(false);
    Options options;
    options.communicator = communicator;
    options.param_dtype = torch::kBFloat16;
    std::string text = fully_shard(*linear, options)->diagnostics().describe_units();
    EXPECT_THAT(text, HasSubstr("1 units over 2 ranks, use_orig_params true"));
    EXPECT_THAT(text, HasSubstr("unit 'root' FULL_SHARD (root)"));
    EXPECT_THAT(text, HasSubstr("trainable Float (gathered in BFloat16): 12 elements, padding 0, shard 6 x 2"));
    EXPECT_THAT(text, HasSubstr("weight [3, 4] at 0: rank 0 [0, 6), rank 1 [6, 12)"));
    EXPECT_THAT(text, HasSubstr("frozen Float (gathered in BFloat16): 3 elements, padding 1, shard 2 x 2"));
    EXPECT_THAT(text, HasSubstr("bias [3] at 0: rank 0 [0, 2), rank 1 [2, 3)"));
  });
}

TEST(DescribeUnits, FlatParametersHaveNamesOfTheirOwn) {
  auto net = make_outer();
  net->a->scale.set_requires_grad(false);
  Options options = plain_options();
  options.use_orig_params = false;
  options.auto_wrap_policy = module_class_policy<PairImpl>();
  auto sharded = fully_shard(*net, options);
  std::vector<std::string> names;
  for (const auto& [name, leaf] : sharded->named_parameters()) names.push_back(name);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(names.size(), 4);
  for (const auto& [name, leaf] : sharded->named_parameters()) {
    EXPECT_THAT(name, HasSubstr(".flat_param"));
    EXPECT_EQ(leaf.requires_grad(), name.find("a.") != 0 || leaf.numel() == 17) << name;
  }
}

TEST(DescribeUnits, OneUnitForAllDrawsAWarningAtItsFirstUse) {
  struct Warnings : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  };
  auto warning_of = [](const WrapPolicy& policy, const std::shared_ptr<Communicator>& communicator) {
    Warnings warnings;
    c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    auto net = make_outer();
    Options options;
    options.communicator = communicator;
    options.auto_wrap_policy = policy;
    auto sharded = fully_shard(*net, options);
    EXPECT_EQ(warnings.text, "");
    sharded->unshard();
    return warnings.text;
  };
  EXPECT_THAT(warning_of({}, make_fake_communicator(0, 4)), HasSubstr("one unit holds the whole model"));
  EXPECT_EQ(warning_of(module_class_policy<PairImpl>(), make_fake_communicator(0, 4)), "");
}

}  // namespace
}  // namespace fsdp::frontend::unit_policies_test
