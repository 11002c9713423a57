// Frozen parameters, for every strategy: they get no gradients and take part in no reduction, as in one process.
#include "engine/engine.h"
#include "support/nets/branched_net.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using testing::BranchedNet;
using testing::BranchedNetImpl;
using testing::expect_as_in_one_process;
using testing::RankStep;
using testing::ShardingCase;

class FrozenParameters : public ::testing::TestWithParam<ShardingCase> {};
INSTANTIATE_TEST_SUITE_P(All, FrozenParameters, ::testing::ValuesIn(testing::sharding_cases()),
                         [](const auto& info) { return testing::name_of(info.param); });

void freeze(const torch::nn::Module& module) {
  for (torch::Tensor& parameter : module.parameters()) parameter.requires_grad_(false);
}

TEST_P(FrozenParameters, OfWholeModelsPassGradientsToInputs) {
  auto make = [] {
    BranchedNet net;
    freeze(*net);
    return net;
  };
  expect_as_in_one_process(GetParam(), make, [](BranchedNetImpl& net, RankStep rank) {
    torch::Tensor x = rank.x().requires_grad_();
    net.loss(x).backward();
    rank.see(x.grad());
    if (rank.sharded) {
      EngineStats stats = rank.sharded->diagnostics().stats();
      EXPECT_EQ(stats.reduce_scatters + stats.all_reduces, 0);
      EXPECT_EQ(stats.peak_gradient_buffer_bytes, 0);
    }
  });
}

// Expects two FlatParameters, of which the frozen one has no gradient and no buffer for it. Automatic units put unused
// parameters into a unit of their own.
void expect_one_frozen_part(ShardedModule& sharded, bool automatic) {
  ASSERT_EQ(sharded.engine().units().size(), automatic ? 2 : 1);
  int64_t trainable = 5 + 18 + (automatic ? 0 : 12 + 8);
  engine::Unit& root = *sharded.engine().units().front();
  ASSERT_EQ(root.flat_parameters().size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    const flat::FlatParameter& flat = *root.flat_parameters()[i];
    EXPECT_EQ(root.gradients().of(i) != nullptr, flat.requires_grad());
    EXPECT_EQ(flat.layout().unpadded_numel(), flat.requires_grad() ? trainable : 25 + 30);
    if (flat.requires_grad()) {
      // The captured gradients and their copies in the buffer.
      int64_t elements = flat.layout().unpadded_numel() + flat.layout().padded_numel();
      EXPECT_LE(sharded.diagnostics().stats().peak_gradient_buffer_bytes, elements * 8);
    }
  }
}

BranchedNet make_half_frozen() {
  BranchedNet net;
  freeze(*net->a);
  freeze(*net->b);
  return net;
}

TEST_P(FrozenParameters, BesideTrainableOnesInOneModule) {
  auto run_step = [](BranchedNetImpl& net, RankStep rank) {
    rank.backward(net.loss(rank.x()));
    if (rank.sharded) expect_one_frozen_part(*rank.sharded, GetParam().automatic);
  };
  expect_as_in_one_process(GetParam(), make_half_frozen, run_step, [](Options& options) {
    options.auto_wrap_policy = {};
    if (options.auto_units) options.auto_units->target_bytes = 1 << 20;
  });
}

TEST_P(FrozenParameters, OfUnitsAreNotReduced) {
  auto run_step = [](BranchedNetImpl& net, RankStep rank) {
    std::vector<std::string> reduced;
    if (rank.sharded) {
      rank.sharded->hooks().set_gradient_hook(
          [&](const ReducedGradient& gradient) { reduced.push_back(gradient.unit); });
    }
    rank.backward(net.loss(rank.x()));
    if (rank.sharded) {
      auto units = GetParam().automatic ? std::pair("a.bias..scale", "c.bias..c.weight") : std::pair("root", "c");
      EXPECT_THAT(reduced, ::testing::UnorderedElementsAre(units.first, units.second));
      rank.sharded->hooks().set_gradient_hook({});
    }
  };
  expect_as_in_one_process(GetParam(), make_half_frozen, run_step);
}

}  // namespace
}  // namespace fsdp
