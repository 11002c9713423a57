// Tests what lies between split layers with sequence parallelism: which bytes are sent, which errors are raised, and
// the moves between whole sequences and their parts. That such modules train as in one process is in
// tensor_parallel_test.cpp.
#include "support/faults/error_of.h"
#include "support/nets/split_net.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::sequence_parallel_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Ranks = std::shared_ptr<Communicator>;
using Use = std::function<torch::Tensor(SplitLayerImpl&, const torch::Tensor&)>;

constexpr SplitNetShape kShape{6, 3, false, false, /*splits_sequence=*/true};
constexpr int64_t kWidth = SplitNetShape::kWidth;

// Calls `use` on each of two ranks with a layer that is split.
void with_layer(const std::function<void(Communicator& group, SplitLayerImpl& layer)>& use) {
  run_ranks(2, [&](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kShape);
    const auto sharded = fully_shard(*net, split_net_options(mesh, kShape));
    auto& layer = *net->layers[0]->as<SplitLayerImpl>();
    layer.forward(torch::ones({2, 3, kWidth}, torch::kFloat64));  // the ranks compare how they shard
    use(*mesh.group("tp"), layer);
  });
}

// Each half of a layer gathers and reduce-scatters once, as Megatron counts, which sends as much as one sum of all
// positions. Of two ranks, each sends half of the values for either.
// One sequence needs no copy where several do.
class SequencesOfALayer : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(All, SequencesOfALayer, ::testing::Values(1, 2));

TEST_P(SequencesOfALayer, SendAsMuchAsWithoutIt) {
  with_layer([](Communicator& group, SplitLayerImpl& layer) {
    const torch::Tensor mine = torch::ones({GetParam(), 3, kWidth}, torch::kFloat64).requires_grad_();
    const uint64_t whole = 2 * mine.nbytes();
    const uint64_t before = group.bytes_sent();
    const torch::Tensor y = layer.forward(mine);
    EXPECT_EQ(y.sizes(), mine.sizes());
    const uint64_t forward = group.bytes_sent() - before;
    EXPECT_EQ(forward, 2 * whole);
    y.sum().backward();
    // Summed once, together: the weight and bias of both norms, and the biases of both row-wise layers.
    const uint64_t shared = (2 * SplitNetShape::kHead + 4 * kWidth) * sizeof(double);
    EXPECT_EQ(group.bytes_sent() - before - forward, 2 * whole + shared);
  });
}

// Nothing holds what was gathered then, but queries, keys and values share it all the same.
TEST_P(SequencesOfALayer, SendNoMoreWithoutAGraph) {
  with_layer([](Communicator& group, SplitLayerImpl& layer) {
    const torch::Tensor mine = torch::ones({GetParam(), 3, kWidth}, torch::kFloat64);
    const torch::Tensor expected = layer.forward(mine.clone().requires_grad_());
    const uint64_t before = group.bytes_sent();
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(layer.forward(mine).equal(expected));
    EXPECT_EQ(group.bytes_sent() - before, 4 * mine.nbytes());
    const c10::InferenceMode inference;
    EXPECT_TRUE(layer.forward(mine.clone()).equal(expected));
  });
}

// A write between two uses of one tensor is seen.
TEST(SequenceParallel, WhatWasGatheredIsNotUsedAfterAWrite) {
  with_layer([](Communicator&, SplitLayerImpl& layer) {
    const torch::NoGradGuard no_grad;
    torch::Tensor x = torch::ones({2, 3, kWidth}, torch::kFloat64);
    const torch::Tensor first = layer.up->forward(x), second = layer.up->forward(x);
    EXPECT_TRUE(first.equal(second));
    x.mul_(2);
    EXPECT_FALSE(layer.up->forward(x).equal(first));
  });
}

std::string error_in(const Use& use) {
  std::string text;
  with_layer([&](Communicator& group, SplitLayerImpl& layer) {
    const std::string error = error_of([&] { use(layer, torch::ones({2, 3, kWidth}, torch::kFloat64)); });
    if (group.rank() == 0) text = error;
  });
  return text;
}

TEST(SequenceParallel, InputsThatHaveNoPositionsAreRefused) {
  EXPECT_THAT(
      error_in([](SplitLayerImpl& layer, const torch::Tensor& x) { return layer.up->forward(x.flatten(0, 1)); }),
      AllOf(HasSubstr("'layers.0.up.weight'"), HasSubstr("its input is of sizes [6, 10]"),
            HasSubstr("dimension 1 must be that of positions (sequence_dim)")));
  EXPECT_THAT(error_in([](SplitLayerImpl& layer, const torch::Tensor&) {
                return layer.down->forward(torch::ones({2, 5, 6}, torch::kFloat64));
              }),
              HasSubstr("values of sizes [2, 5, 6] cannot be cut along dimension 1 into 2 equal parts"));
}

TEST(SequenceParallel, ASequenceThatRanksDoNotDivideIsRefused) {
  run_ranks(2, [](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kShape);
    const auto sharded = fully_shard(*net, split_net_options(mesh, kShape));
    EXPECT_THAT(error_of([&] { net->forward(torch::zeros({2, 7}, torch::kLong)); }),
                AllOf(HasSubstr("[2, 7] cannot be cut along dimension 1 into 2 equal parts"),
                      HasSubstr("pad the sequence to a multiple of the ranks")));
  });
}

TEST(SequenceParallel, ANormWithoutARuleIsNamed) {
  const std::vector<std::string> errors = errors_of_ranks(2, [](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kShape);
    Options options = split_net_options(mesh, kShape);
    options.tensor_parallel->plan.pop_back();
    const auto sharded = fully_shard(*net, options);
    net->loss(split_net_ids(0, 0)).backward();
    sharded->clip_grad_norm_(1.0);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr(".norm."), HasSubstr("kSharedByParts"))));
}

TEST(SequenceParallel, RanksWithAnotherDimensionAreNamed) {
  const std::vector<std::string> errors = errors_of_ranks(2, [](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    SplitNet net = make_split_net(kShape);
    Options options = split_net_options(mesh, kShape);
    options.tensor_parallel->sequence_dim = world->rank();
    fully_shard(*net, options);
  });
  EXPECT_THAT(errors, Each(HasSubstr("the plan of rank 1 differs from that of rank 0")));
}

TEST(SplitSequence, GathersAndTakesWithTheirGradients) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](Ranks world) {
      for (const int64_t sequences : {1, 2}) {
        const torch::Tensor whole = numbers({sequences, 6, 5}).to(torch::kDouble);
        const int64_t size = 6 / ranks, begin = size * world->rank();
        const torch::Tensor factor = numbers({sequences, 6, 5}).to(torch::kDouble).sin();

        const torch::Tensor mine = whole.narrow(1, begin, size).clone().requires_grad_();
        const torch::Tensor gathered = SplitSequence(world, 1).gather(mine);
        EXPECT_TRUE(gathered.equal(whole));
        (gathered * factor).sum().backward();
        EXPECT_TRUE(mine.grad().equal(factor.narrow(1, begin, size)));

        const torch::Tensor all = whole.clone().requires_grad_();
        const torch::Tensor taken = SplitSequence(world, 1).take(all);
        EXPECT_TRUE(taken.equal(mine));
        (taken * factor.narrow(1, begin, size)).sum().backward();
        EXPECT_TRUE(all.grad().equal(factor));
        EXPECT_FALSE(taken.is_alias_of(all));
      }
    });
  }
}

}  // namespace
}  // namespace fsdp::sequence_parallel_test
