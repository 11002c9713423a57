// Tests that uses of split weights that have no rule, plans that do not fit, and whole parameters used on parts are
// refused by name.
#include "support/faults/error_of.h"
#include "support/nets/split_net.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::tensor_parallel_errors_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using ::testing::AllOf;
using ::testing::HasSubstr;

using Ranks = std::shared_ptr<Communicator>;
using Shape = SplitNetShape;

constexpr Shape kUneven{6, 3, false, false};

TEST(SplitParameters, AWholeParameterThatIsUsedOnPartsIsNamed) {
  const std::vector<std::string> errors = errors_of_ranks(2, [](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kUneven);
    Options options = split_net_options(mesh, kUneven);
    std::erase_if(options.tensor_parallel->plan,
                  [](const TensorParallelRule& rule) { return rule.style == SplitStyle::kSharedByParts; });
    const auto sharded = fully_shard(*net, options);
    net->loss(split_net_ids(0, 0)).backward();
    sharded->clip_grad_norm_(1.0);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("attention.norm."), HasSubstr("differs between the ranks"),
                             HasSubstr("kSharedByParts")));
  }
}

std::string error_in_forward(const std::function<torch::Tensor(SplitLayerImpl&, const torch::Tensor&)>& use) {
  std::string text;
  run_ranks(2, [&](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kUneven, torch::kFloat32);
    const auto sharded = fully_shard(*net, split_net_options(mesh, kUneven));
    const std::string error =
        error_of([&] { use(*net->layers[1]->as<SplitLayerImpl>(), torch::ones({3, Shape::kWidth})); });
    if (world->rank() == 0) text = error;
  });
  return text;
}

TEST(SplitParameters, OtherUsesAreRefusedByName) {
  const auto refused = [](const std::string& op, const std::string& why = "") {
    return AllOf(HasSubstr(op), HasSubstr("'layers.1.down.weight', which is split along dimension 1 over 2 ranks"),
                 HasSubstr(why));
  };
  EXPECT_THAT(error_in_forward([](SplitLayerImpl& layer, const torch::Tensor&) { return layer.down->weight.sum(); }),
              refused("aten::sum"));
  EXPECT_THAT(error_in_forward([](SplitLayerImpl& layer, const torch::Tensor& x) {
                return torch::matmul(x, layer.down->weight.slice(1, 0, 2));
              }),
              refused("aten::matmul", "not the whole weight"));
  EXPECT_THAT(error_in_forward([](SplitLayerImpl& layer, const torch::Tensor&) {
                return layer.down->forward(torch::ones({3, SplitNetShape::kHidden}));
              }),
              refused("aten::addmm", "the last must be 6, this rank's part"));
  EXPECT_THAT(error_in_forward([](SplitLayerImpl& layer, const torch::Tensor& x) {
                return torch::matmul(layer.down->weight, x.t());
              }),
              refused("aten::matmul", "its other arguments are whole"));
  EXPECT_THAT(error_in_forward([](SplitLayerImpl& layer, const torch::Tensor&) {
                const torch::NoGradGuard no_grad;
                return layer.down->weight.zero_();
              }),
              refused("aten::zero_", "it writes to it"));
}

TEST(SplitParameters, DoubleBackwardIsRefused) {
  EXPECT_THAT(error_in_forward([](SplitLayerImpl& layer, const torch::Tensor& x) {
                const torch::Tensor y = layer.down->forward(torch::tanh(layer.up->forward(x).chunk(2, -1)[0]));
                return torch::autograd::grad({y.sum()}, {layer.up->weight}, {}, true, /*create_graph=*/true)[0];
              }),
              HasSubstr("double backward (create_graph)"));
}

TEST(SplitParameters, PlansThatCannotBeFollowedAreRefused) {
  const auto error_with = [](const TensorParallelRule& rule, int ranks = 2) {
    return errors_of_ranks(ranks, [&](Ranks world) {
      DeviceMesh mesh = DeviceMesh::make(world, {{"tp", ranks}});
      SplitNet net = make_split_net(kUneven, torch::kFloat32);
      Options options = split_net_options(mesh, kUneven);
      options.tensor_parallel->plan.insert(options.tensor_parallel->plan.begin(), rule);
      fully_shard(*net, options);
    })[0];
  };
  using enum SplitStyle;
  EXPECT_THAT(error_with({"layers.*.gate", kColwise}),
              HasSubstr("the rule 'layers.*.gate' (colwise) matches no module with parameters"));
  EXPECT_THAT(error_with({"layers.*.up", kColwise, 3}),
              AllOf(HasSubstr("cannot split parameter 'layers.0.up.weight'"), HasSubstr("22 elements"),
                    HasSubstr("into 3 equal groups")));
  EXPECT_THAT(error_with({"layers.*.attention.q", kColwise, 1}), HasSubstr("2 ranks cannot each get one of 1 group"));
  EXPECT_THAT(error_with({"layers.*.up", kColwise, 1, {3, 4}}), HasSubstr("the sections have 7 elements"));
  EXPECT_THAT(error_with({"layers.*.norm", kVocabulary}), HasSubstr("it has 1 dimensions"));
}

TEST(SplitParameters, RanksWithOtherPlansAreNamed) {
  const std::vector<std::string> errors = errors_of_ranks(2, [](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kUneven, torch::kFloat32);
    Options options = split_net_options(mesh, kUneven);
    if (world->rank() == 1) options.tensor_parallel->plan.pop_back();
    fully_shard(*net, options);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("the plan of rank 1 differs from that of rank 0"));
  }
}

TEST(SplitParameters, WholeParametersAreRefusedToScopesThatNeedThem) {
  run_ranks(2, [](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kUneven, torch::kFloat32);
    const auto sharded = fully_shard(*net, split_net_options(mesh, kUneven));
    EXPECT_THAT(error_of([&] { sharded->with_full_params([] {}); }),
                AllOf(HasSubstr("summon_full_params needs whole parameters"), HasSubstr("split along dimension")));
  });
}

}  // namespace
}  // namespace fsdp::tensor_parallel_errors_test
