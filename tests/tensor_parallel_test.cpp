// Tests that plain modules train as in one process while their weights are split over ranks, under FSDP and without it.
#include "fsdp/deferred_init.h"
#include "fsdp/shard_norms.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"
#include "support/nets/split_net.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::tensor_parallel_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using ::testing::TestWithParam;
using ::testing::Values;

using Ranks = std::shared_ptr<Communicator>;
using Weights = std::map<std::string, torch::Tensor>;

using Shape = SplitNetShape;
constexpr int kSteps = 20;

// A large epsilon, because Adam divides small gradients by their own size, with their rounding errors.
torch::optim::AdamWOptions optimizer_options() { return torch::optim::AdamWOptions(0.02).eps(1e-3); }

double clip(const std::vector<torch::Tensor>& parameters) { return torch::nn::utils::clip_grad_norm_(parameters, 0.1); }

struct Trained {
  std::vector<double> losses, norms;
  Weights weights;
};

// A shared parameter is listed once.
std::vector<torch::Tensor> distinct_parameters(const torch::nn::Module& module) {
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : module.parameters()) {
    const auto same = [&](const torch::Tensor& known) { return known.is_same(parameter); };
    if (std::none_of(parameters.begin(), parameters.end(), same)) parameters.push_back(parameter);
  }
  return parameters;
}

Trained train_alone(const Shape& shape, at::ScalarType dtype, int data_ranks) {
  SplitNet net = make_split_net(shape, dtype);
  const std::vector<torch::Tensor> parameters = distinct_parameters(*net);
  torch::optim::AdamW optimizer(parameters, optimizer_options());
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double sum = 0;
    for (int rank = 0; rank < data_ranks; ++rank) {
      const torch::Tensor loss = net->loss(split_net_ids(step, rank)) / data_ranks;
      loss.backward();
      sum += loss.item<double>();
    }
    result.losses.push_back(sum);
    result.norms.push_back(clip(parameters));
    optimizer.step();
  }
  result.weights = weights_of(*net);
  return result;
}

Weights whole_weights(ShardedModule& sharded) {
  Weights weights;
  sharded.for_each_full_parameter(
      [&](const std::string& fqn, const torch::Tensor& full) { weights[fqn] = full.clone(); });
  return weights;
}

// ---------------------------------------------------------------- as in one process

struct Mesh {
  int data = 1, tensor = 2;
};

struct Case {
  Mesh mesh;
  ShardingStrategy strategy;
  bool use_orig_params;
  Shape shape;
  at::ScalarType dtype;
};

Trained train_split(const Case& one, DeviceMesh& mesh) {
  SplitNet net = make_split_net(one.shape, one.dtype);
  Options options = split_net_options(mesh, one.shape, one.strategy);
  options.use_orig_params = one.use_orig_params;
  const auto sharded = fully_shard(*net, options);
  torch::optim::AdamW optimizer(sharded->parameters(), optimizer_options());
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    sharded->zero_grad();
    const torch::Tensor loss = net->loss(split_net_ids(step, mesh.rank("dp_shard")));
    loss.backward();
    result.losses.push_back(loss.item<double>());
    result.norms.push_back(sharded->clip_grad_norm_(0.1).item<double>());
    optimizer.step();
  }
  result.weights = whole_weights(*sharded);
  return result;
}

class SplitNets : public TestWithParam<Case> {};

TEST_P(SplitNets, TrainAsInOneProcess) {
  const Case& one = GetParam();
  const auto [data, tensor] = one.mesh;
  const Trained expected = train_alone(one.shape, one.dtype, data);
  const double tolerance = one.dtype == torch::kFloat64 ? 1e-12 : 1e-5;
  const double of_norms = one.dtype == torch::kFloat64 ? 1e-11 : 1e-3;  // those of small gradients
  run_ranks(data * tensor, [&, data = data, tensor = tensor](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"dp_shard", data}, {"tp", tensor}});
    const Trained found = train_split(one, mesh);
    for (int step = 0; step < kSteps; ++step) {
      if (data == 1) {
        EXPECT_NEAR(found.losses[step], expected.losses[step], tolerance * 10) << step;
      }
      EXPECT_NEAR(found.norms[step], expected.norms[step], of_norms * expected.norms[step]) << step;
    }
    ASSERT_EQ(found.weights.size(), expected.weights.size());
    for (const auto& [fqn, weight] : expected.weights) {
      EXPECT_TRUE(found.weights.at(fqn).allclose(weight, tolerance, tolerance))
          << fqn << ' ' << (found.weights.at(fqn) - weight).abs().max();
    }
  });
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& one = info.param;
  return c10::str(one.mesh.data, "x", one.mesh.tensor, "ranks_", to_string(one.strategy),
                  one.use_orig_params ? "" : "_flat", one.shape.tied ? "_tied" : "",
                  one.shape.recomputes ? "_again" : "", one.shape.splits_sequence ? "_sequence" : "", "_heads",
                  one.shape.shared, one.dtype == torch::kFloat64 ? "" : "_fp32");
}

using enum ShardingStrategy;
constexpr Shape kEven{4, 2, false, false}, kUneven{6, 3, false, false}, kTied{6, 3, true, false},
    kAgain{6, 3, true, true}, kFive{5, 5, false, false}, kSequence{6, 3, false, false, true},
    kTiedSequence{6, 3, true, false, true}, kSequenceAgain{6, 3, true, true, true};
INSTANTIATE_TEST_SUITE_P(All, SplitNets,
                         Values(Case{{1, 2}, kNoShard, true, kEven, torch::kFloat64},
                                Case{{1, 2}, kNoShard, true, kUneven, torch::kFloat64},
                                Case{{1, 2}, kFullShard, false, kTied, torch::kFloat64},
                                Case{{1, 3}, kFullShard, true, kUneven, torch::kFloat64},
                                Case{{1, 3}, kFullShard, true, kFive, torch::kFloat32},
                                Case{{1, 2}, kFullShard, true, kAgain, torch::kFloat64},
                                Case{{2, 2}, kFullShard, true, kTied, torch::kFloat64},
                                Case{{2, 2}, kFullShard, true, kUneven, torch::kFloat32},
                                Case{{2, 2}, kShardGradOp, false, kAgain, torch::kFloat64},
                                Case{{2, 2}, kNoShard, true, kUneven, torch::kFloat64},
                                Case{{1, 2}, kNoShard, true, kSequence, torch::kFloat64},
                                Case{{1, 3}, kFullShard, true, kTiedSequence, torch::kFloat64},
                                Case{{1, 3}, kNoShard, true, kSequenceAgain, torch::kFloat32},
                                Case{{2, 2}, kFullShard, true, kSequenceAgain, torch::kFloat64},
                                Case{{2, 2}, kShardGradOp, false, kTiedSequence, torch::kFloat64},
                                Case{{2, 2}, kFullShard, true, kSequence, torch::kFloat32}),
                         name_of);

// ---------------------------------------------------------------- initial values, norms, communication

TEST(SplitParameters, InitialValuesDoNotDependOnTheMesh) {
  const Weights expected = weights_of(*make_split_net(kTied));
  for (const bool deferred : {false, true}) {
    run_ranks(3, [&](Ranks world) {
      DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 3}});
      const auto make = [] { return make_split_net(kTied); };
      SplitNet net = deferred ? deferred_init(make) : make();
      const auto sharded = fully_shard(*net, split_net_options(mesh, kTied));
      const Weights found = whole_weights(*sharded);
      for (const auto& [fqn, weight] : expected) EXPECT_TRUE(found.at(fqn).equal(weight)) << fqn;
      EXPECT_EQ(net->layers[0]->as<SplitLayerImpl>()->down->weight.sizes(),
                torch::IntArrayRef({Shape::kWidth, world->rank() < 2 ? 4 : 3}));
    });
  }
}

TEST(SplitParameters, NormsCountEachElementOnce) {
  SplitNet alone = make_split_net(kUneven);
  alone->loss(split_net_ids(0, 0)).backward();
  run_ranks(2, [&](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kUneven);
    const auto sharded = fully_shard(*net, split_net_options(mesh, kUneven));
    net->loss(split_net_ids(0, 0)).backward();
    for (const double type : {1.0, 2.0, static_cast<double>(INFINITY)}) {
      const double expected = torch::nn::utils::clip_grad_norm_(alone->parameters(), 1e9, type);
      EXPECT_NEAR(sharded->grad_norm(type).item<double>(), expected, 1e-12 * expected) << type;
    }
    const auto names = sharded->named_parameters();
    const std::vector<double> norms = parameter_norms(*sharded, NormOf::kGradient);
    for (size_t i = 0; i < names.size(); ++i) {
      const double expected = alone->named_parameters()[names[i].first].grad().norm().item<double>();
      EXPECT_NEAR(norms[i], expected, 1e-12) << names[i].first;
    }
  });
}

// Layers that use one tensor add its gradient up once: Megatron's two sums a layer in forward and two in backward.
TEST(SplitParameters, ALayerAddsUpTwiceForwardAndTwiceBackward) {
  run_ranks(2, [](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kUneven);
    const auto sharded = fully_shard(*net, split_net_options(mesh, kUneven));
    const auto group = mesh.group("tp");
    const torch::Tensor ids = split_net_ids(0, 0);
    const torch::Tensor x = torch::ones({2, 5, Shape::kWidth}, torch::kFloat64).requires_grad_();
    const auto layer = net->layers[0]->as<SplitLayerImpl>();
    layer->forward(x);  // the ranks compare how they shard
    const uint64_t before = group->bytes_sent();
    const torch::Tensor y = layer->forward(x);
    const uint64_t forward = group->bytes_sent() - before;
    EXPECT_EQ(forward, 2 * x.nbytes());  // each of two ranks sends half of the sum and half of its own values
    y.sum().backward();
    const uint64_t of_norm = Shape::kHead * 2 * sizeof(double);  // of weight and bias of the heads' norm
    EXPECT_EQ(group->bytes_sent() - before - forward, 2 * x.nbytes() + of_norm);
  });
}

// Parameters that are shared by parts are added up once, in the backward that reduces.
TEST(SplitParameters, AccumulatedGradientsAreThoseOfOneProcess) {
  SplitNet alone = make_split_net(kUneven);
  for (int pass = 0; pass < 3; ++pass) alone->loss(split_net_ids(pass, 0)).backward();
  const double expected = torch::nn::utils::clip_grad_norm_(alone->parameters(), 1e9);
  for (const auto strategy : {kFullShard, kNoShard}) {
    for (const bool syncs : {false, true}) {
      run_ranks(2, [&](Ranks world) {
        DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
        const Shape& shape = syncs ? kUneven : kSequence;
        SplitNet net = make_split_net(shape);
        const auto sharded = fully_shard(*net, split_net_options(mesh, shape, strategy));
        for (int pass = 0; pass < 3; ++pass) {
          sharded->set_requires_gradient_sync(syncs || pass == 2);
          net->loss(split_net_ids(pass, 0)).backward();
        }
        EXPECT_NEAR(sharded->grad_norm().item<double>(), expected, 1e-12 * expected);
        for (const auto& [fqn, leaf] : sharded->named_parameters()) {
          if (fqn.find("attention.norm") == std::string::npos) continue;
          EXPECT_TRUE(leaf.grad().allclose(alone->named_parameters()[fqn].grad().flatten(), 1e-12, 1e-12)) << fqn;
        }
      });
    }
  }
}

TEST(SplitParameters, GradientsOfInputsAreThoseOfOneProcess) {
  const torch::Tensor input = numbers({2, 5, Shape::kWidth}).to(torch::kDouble);
  const auto gradient_of = [&](SplitNet& net) {
    const torch::Tensor x = input.clone().requires_grad_();
    const torch::Tensor y = net->layers[1]->as<SplitLayerImpl>()->forward(x);
    return torch::autograd::grad({(y * y).sum()}, {x})[0];
  };
  SplitNet alone = make_split_net(kUneven);
  const torch::Tensor expected = gradient_of(alone);
  run_ranks(3, [&](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 3}});
    SplitNet net = make_split_net(kUneven);
    const auto sharded = fully_shard(*net, split_net_options(mesh, kUneven));
    EXPECT_TRUE(gradient_of(net).allclose(expected, 1e-12, 1e-12));
  });
}

// Sums of bf16 parts are rounded once more.
TEST(SplitParameters, MixedPrecisionTrainsAlmostAsWithoutParts) {
  const auto losses = [](Ranks world, int tensor, const Shape& shape) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", tensor}});
    SplitNet net = make_split_net(shape, torch::kFloat32);
    Options options = split_net_options(mesh, shape);
    options.param_dtype = torch::kBFloat16;
    options.reduce_dtype = torch::kFloat32;
    const auto sharded = fully_shard(*net, options);
    torch::optim::SGD optimizer(sharded->parameters(), torch::optim::SGDOptions(0.01));
    std::vector<double> result;
    for (int step = 0; step < 5; ++step) {
      sharded->zero_grad();
      const torch::Tensor loss = net->loss(split_net_ids(0, 0));
      loss.backward();
      optimizer.step();
      result.push_back(loss.item<double>());
    }
    return result;
  };
  std::vector<double> expected;
  run_ranks(1, [&](Ranks world) { expected = losses(world, 1, kUneven); });
  EXPECT_LT(expected.back(), expected.front());
  for (const Shape& shape : {kUneven, kSequence}) {
    run_ranks(2, [&](Ranks world) {
      const std::vector<double> found = losses(world, 2, shape);
      for (size_t step = 0; step < found.size(); ++step) EXPECT_NEAR(found[step], expected[step], 0.05) << step;
    });
  }
}

// ---------------------------------------------------------------- with other options

// Shards and optimizer state in files.
TEST(SplitParameters, TrainFromFilesAsFromMemory) {
  const TemporaryFolder folder;
  run_ranks(4, [&](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"dp_shard", 2}, {"tp", 2}});
    std::vector<Weights> trained;
    for (const bool in_files : {false, true}) {
      SplitNet net = make_split_net(kSequence);
      Options options = split_net_options(mesh, kSequence);
      if (in_files) options.offload_path = folder.path().string();
      const auto sharded = fully_shard(*net, options);
      torch::optim::SGD optimizer(sharded->parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 3; ++step) {
        sharded->zero_grad();
        net->loss(split_net_ids(step, mesh.rank("dp_shard"))).backward();
        sharded->clip_grad_norm_(1.0);
        optimizer.step();
      }
      trained.push_back(whole_weights(*sharded));
    }
    for (const auto& [fqn, weight] : trained[0]) EXPECT_TRUE(trained[1].at(fqn).equal(weight)) << fqn;
  });
}

// A hook sees sums over the parts, too, and one that communicates itself leaves these to the engine.
TEST(SplitParameters, HooksSeeWholeGradientsOfSharedParameters) {
  SplitNet alone = make_split_net(kSequence);
  alone->loss(split_net_ids(0, 0)).backward();
  const torch::Tensor expected = alone->named_parameters()["layers.0.norm.weight"].grad();
  for (const bool communicates : {false, true}) {
    run_ranks(2, [&](Ranks world) {
      DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
      SplitNet net = make_split_net(kSequence);
      const auto sharded = fully_shard(*net, split_net_options(mesh, kSequence, kNoShard));
      int calls = 0;
      sharded->hooks().set_gradient_hook([&](const ReducedGradient& reduced) {
        ++calls;
        reduced.gradient.mul_(2);
      });
      if (communicates) {
        sharded->hooks().set_communication_hook(
            [](const ReduceRequest& request) { request.reduced.copy_(request.unsharded * request.scale); });
      }
      net->loss(split_net_ids(0, 0)).backward();
      EXPECT_GT(calls, 2);
      for (const auto& [fqn, leaf] : sharded->named_parameters()) {
        if (fqn == "layers.0.norm.weight") {
          EXPECT_TRUE(leaf.grad().allclose(2 * expected, 1e-12, 1e-12));
        }
      }
    });
  }
}

}  // namespace
}  // namespace fsdp::tensor_parallel_test
