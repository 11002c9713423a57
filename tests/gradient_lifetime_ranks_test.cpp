// Rule R5 over ranks: gradients of parameters that one rank or all ranks leave out.
#include "engine/engine.h"
#include "support/nets/on_demand_net.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::gradients_of;
using testing::make_on_demand_net;
using testing::OnDemandNetImpl;
using testing::run_ranks;
using testing::shard_strictly;

struct RanksCase {
  const char* name;
  bool one_unit;
};
class LifetimeOnRanks : public ::testing::TestWithParam<RanksCase> {};
INSTANTIATE_TEST_SUITE_P(All, LifetimeOnRanks,
                         ::testing::Values(RanksCase{"one_unit", true}, RanksCase{"units", false}),
                         [](const auto& info) { return std::string(info.param.name); });

// Returns the loss of a rank. On odd ranks, c's bias is not used.
torch::Tensor uneven_loss(OnDemandNetImpl& m, int rank) {
  torch::Tensor h = torch::tanh(m.b(torch::tanh(m.a(m.x * (rank + 1)))));
  torch::Tensor y = rank % 2 ? torch::linear(h, m.c->weight) : m.c(h);
  return y.pow(2).sum();
}

std::map<std::string, torch::Tensor> whole_gradients(ShardedModule& sharded) {
  torch::NoGradGuard no_grad;
  for (const auto& [name, leaf] : sharded.named_parameters()) {
    leaf.data().copy_(leaf.grad().defined() ? leaf.grad() : torch::full_like(leaf, -99));
  }
  return testing::weights_of(sharded);
}

TEST_P(LifetimeOnRanks, UnusedOnOneRankOnly) {
  constexpr int kRanks = 3;
  auto plain = make_on_demand_net();
  for (int rank = 0; rank < kRanks; ++rank) (uneven_loss(*plain, rank) / kRanks).backward();
  run_ranks(kRanks,
            [&](std::shared_ptr<Communicator> communicator) {
              auto net = make_on_demand_net();
              Options options = testing::one_rank_options();
              options.communicator = communicator;
              if (GetParam().one_unit) options.auto_wrap_policy = {};
              auto sharded = shard_strictly(*net, options);
              uneven_loss(*net, communicator->rank()).backward();
              auto got = whole_gradients(*sharded);
              for (const auto& [name, want] : gradients_of(*plain)) {
                EXPECT_TRUE(torch::allclose(got.at(name), want, 1e-5, 1e-6)) << name << got.at(name) << want;
              }
            },
            {std::chrono::seconds(20)});
}

TEST_P(LifetimeOnRanks, UnusedOnAllRanksStaysUndefined) {
  run_ranks(2,
            [&](std::shared_ptr<Communicator> communicator) {
              auto net = make_on_demand_net();
              Options options = testing::one_rank_options();
              options.communicator = communicator;
              if (GetParam().one_unit) options.auto_wrap_policy = {};
              auto sharded = shard_strictly(*net, options);
              net->loss(/*with_b=*/false).backward();
              for (const auto& [name, leaf] : sharded->named_parameters()) {
                bool used = name[0] != 'b' && leaf.numel() > 0;
                EXPECT_EQ(leaf.grad().defined(), used) << name;
              }
            },
            {std::chrono::seconds(20)});
}

}  // namespace
}  // namespace fsdp
