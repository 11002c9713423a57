// The cut by rows: each rank holds exactly the rows that torch.chunk gives it, with one collective for each unit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "engine/engine.h"
#include "fsdp/state_dict.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::Bag;
using testing::expect_error;
using testing::numbers;
using testing::run_ranks;
using testing::same_bits;

using World = std::shared_ptr<Communicator>;
using Tensors = std::vector<torch::Tensor>;

Options row_options(const World& world) {
  Options options;
  options.communicator = world;
  options.shard_cut = ShardCut::kRows;
  return options;
}

// Odd sizes, no elements, no dimensions, and memory formats with and without whole rows.
Tensors odd_tensors() {
  return {numbers({7, 3}),
          numbers({5}),
          numbers({1, 4}),
          numbers({}),
          numbers({3, 0}),
          numbers({0, 3}),
          numbers({4, 3, 2, 2}).to(at::MemoryFormat::ChannelsLast),
          numbers({5, 8}).t(),
          numbers({12, 2})};
}

// Returns the rows of a rank as torch.chunk cuts them: a tensor without rows if there are fewer chunks.
torch::Tensor rows_of(const torch::Tensor& tensor, const World& world) {
  const torch::Tensor rows = tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
  const Tensors chunks = rows.chunk(world->size());
  const auto rank = static_cast<size_t>(world->rank());
  return rank < chunks.size() ? chunks[rank] : rows.narrow(0, 0, 0);
}

// The parameters of the module are whole and have these values.
void expect_values(Bag& bag, const Tensors& want) {
  const Tensors parameters = bag->parameters();
  ASSERT_EQ(parameters.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(same_bits(parameters[i].detach().clone().contiguous(), want[i].contiguous())) << i;
  }
}

class RowCut : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  void on_ranks(const std::function<void(const World&)>& body) {
    const auto& [ranks, communicator] = GetParam();
    run_ranks(ranks, body, {.communicator = communicator});
  }
};
using Ranks = std::tuple<int, const char*>;  // how many, and RankOptions::communicator
INSTANTIATE_TEST_SUITE_P(All, RowCut,
                         ::testing::Values(Ranks{1, ""}, Ranks{2, ""}, Ranks{3, ""}, Ranks{4, ""}, Ranks{4, "hosts"}),
                         [](const auto& info) {
                           return c10::str(std::get<0>(info.param), "ranks", std::get<1>(info.param));
                         });

TEST_P(RowCut, ALeafHoldsTheRowsOfItsRank) {
  on_ranks([](const World& world) {
    Bag bag(odd_tensors());
    auto sharded = fully_shard(bag, row_options(world));
    for (const ShardSlice& slice : sharded->shard_slices()) {
      const torch::Tensor want = rows_of(odd_tensors().at(std::stoul(slice.fqn.substr(1))), world);
      ASSERT_EQ(slice.end - slice.begin, want.numel()) << slice.fqn;
      if (want.numel() == 0) continue;
      // The parameter's memory order: that of its strides.
      std::vector<int64_t> sizes = slice.sizes;
      if (!sizes.empty()) sizes[0] = want.size(0);
      const torch::Tensor got = slice.data.as_strided(sizes, slice.strides);
      EXPECT_TRUE(same_bits(got.contiguous(), want.reshape(sizes).contiguous())) << slice.fqn;
    }
  });
}

TEST_P(RowCut, TheModuleHasWholeParametersWithTheirStrides) {
  on_ranks([](const World& world) {
    Bag bag(odd_tensors());
    auto sharded = fully_shard(bag, row_options(world));
    const Tensors want = odd_tensors();
    expect_values(bag, want);
    // Channels last has whole rows, a transposed matrix has not.
    EXPECT_EQ(bag->parameters()[6].strides(), want[6].strides());
    EXPECT_EQ(bag->parameters()[7].is_contiguous(), world->size() > 1);
  });
}

// Options::shard_dim: the last dimension of matrices, the middle one of tensors with three.
int64_t inner_dimension(const torch::Tensor& parameter) { return parameter.dim() / 2; }

Options inner_options(const World& world) {
  Options options = row_options(world);
  options.shard_dim = inner_dimension;
  return options;
}

Tensors deep_tensors() {
  return {numbers({3, 7}), numbers({5}),       numbers({2, 4}),     numbers({}),        numbers({3, 0}),
          numbers({0, 3}), numbers({2, 5, 3}), numbers({8, 5}).t(), numbers({1, 6, 1}), numbers({4, 1})};
}

TEST_P(RowCut, ALeafHoldsSlicesOfAnotherDimension) {
  on_ranks([](const World& world) {
    Bag bag(deep_tensors());
    auto sharded = fully_shard(bag, inner_options(world));
    for (const ShardSlice& slice : sharded->shard_slices()) {
      const torch::Tensor whole = deep_tensors().at(std::stoul(slice.fqn.substr(1)));
      const int64_t dim = inner_dimension(whole);
      const torch::Tensor want = rows_of(whole.dim() == 0 ? whole : whole.movedim(dim, 0), world);
      ASSERT_EQ(slice.end - slice.begin, want.numel()) << slice.fqn;
      if (want.numel() == 0) continue;
      std::vector<int64_t> sizes = slice.sizes;
      if (!sizes.empty()) sizes[dim] = want.size(0);
      const torch::Tensor got = slice.data.as_strided(sizes, slice.strides);
      const torch::Tensor rows = got.dim() == 0 ? got.unsqueeze(0) : got.movedim(dim, 0);
      EXPECT_TRUE(same_bits(rows.contiguous(), want.contiguous())) << slice.fqn;
    }
    expect_values(bag, deep_tensors());
  });
}

// Gradients, the optimizer's step and states are those of the cut by the first dimension.
TEST_P(RowCut, SlicesOfAnotherDimensionTrainAsRowsDo) {
  on_ranks([](const World& world) {
    const auto train = [&](const Options& options) {
      Bag bag(deep_tensors());
      auto sharded = fully_shard(bag, options);
      torch::optim::SGD optimizer(sharded->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        torch::Tensor loss = torch::zeros({});
        for (const torch::Tensor& parameter : bag->parameters()) {
          loss = loss + (parameter.pow(3) * (world->rank() + 1)).sum();
        }
        loss.backward();
        optimizer.step();
      }
      Tensors values;
      for (const torch::Tensor& parameter : bag->parameters()) values.push_back(parameter.detach().clone());
      return values;
    };
    const Tensors want = train(row_options(world)), got = train(inner_options(world));
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(same_bits(got[i].contiguous(), want[i].contiguous())) << i;
    }
  });
}

TEST_P(RowCut, StatesOfSlicesLoadIntoRowsAndBack) {
  on_ranks([](const World& world) {
    const auto zeros = [] {
      Tensors tensors = deep_tensors();
      for (torch::Tensor& tensor : tensors) tensor = torch::zeros_like(tensor);
      return tensors;
    };
    for (const auto& [from, to] :
         {std::pair(row_options(world), inner_options(world)), std::pair(inner_options(world), row_options(world))}) {
      Bag source(deep_tensors()), full(zeros());
      auto sharded_source = fully_shard(source, from), sharded_full = fully_shard(full, to);
      const FullStateDict values = full_state_dict(*sharded_source, *source);
      load_full_state_dict(*sharded_full, *full, values);
      expect_values(full, deep_tensors());
    }
  });
}

Tensors large_tensors() { return {numbers({513, 600}), numbers({300, 400}), numbers({3})}; }

// Over Gloo, parts of this size are gathered straight to their places, without a second copy of the unit.
TEST_P(RowCut, LargeUnitsAreWholeAndTakeNoOtherMemory) {
  on_ranks([](const World& world) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      Bag bag(large_tensors());
      Options options = row_options(world);
      options.param_dtype = dtype;
      auto sharded = fully_shard(bag, options);
      Tensors want;
      for (const torch::Tensor& tensor : large_tensors()) want.push_back(tensor.to(dtype));
      expect_values(bag, want);
      if (world->size() == 1 || !world->gathers_ranges()) continue;
      const EngineStats stats = sharded->diagnostics().stats();
      const int64_t padded = sharded->engine().units().front()->flat_parameters().front()->layout().padded_numel();
      EXPECT_EQ(stats.all_gathers, 1);
      EXPECT_EQ(stats.peak_gathered_bytes, padded * static_cast<int64_t>(c10::elementSize(dtype)));
    }
  });
}

TEST_P(RowCut, OneCollectiveForEachUnit) {
  on_ranks([](const World& world) {
    auto model = testing::make_tiny_lm({});
    Options options = testing::block_options(world);
    options.shard_cut = ShardCut::kRows;
    auto sharded = fully_shard(*model, options);
    model->forward(testing::batch_of(world->rank(), 0)).sum().backward();
    const EngineStats stats = sharded->diagnostics().stats();
    const int64_t reductions = world->size() == 1 ? 0 : stats.units;
    EXPECT_EQ(stats.reduce_scatters, reductions);
    EXPECT_LE(stats.all_gathers, world->size() == 1 ? 0 : 2 * stats.units);
  });
}

// Gradients of rows that no rank's data reach, and padding, are zero: norms are those of the flat cut.
TEST_P(RowCut, NormsAreThoseOfTheFlatCut) {
  on_ranks([](const World& world) {
    const auto norm_of = [&](ShardCut cut, bool orig) {
      Bag bag(odd_tensors());
      Options options = row_options(world);
      options.shard_cut = cut;
      options.use_orig_params = orig;
      auto sharded = fully_shard(bag, options);
      (bag->parameters()[0] * bag->parameters()[0]).sum().backward();
      bag->parameters()[1].pow(3).sum().backward();
      return sharded->clip_grad_norm_(1e9).item<double>();
    };
    const double flat = norm_of(ShardCut::kFlat, true);
    EXPECT_GT(flat, 1);
    EXPECT_NEAR(norm_of(ShardCut::kRows, true), flat, 1e-6 * flat);
    EXPECT_NEAR(norm_of(ShardCut::kRows, false), flat, 1e-6 * flat);
  });
}

// Ranks share the buffers of a model when they first gather it. No rank may then lose what another one has written.
TEST_P(RowCut, SeveralModelsOverOneGroup) {
  on_ranks([](const World& world) {
    for (int model = 0; model < 5; ++model) {
      if (model % 2 == world->rank() % 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      Bag bag(odd_tensors());
      auto sharded = fully_shard(bag, row_options(world));
      EXPECT_TRUE(same_bits(bag->parameters()[0].detach().clone(), odd_tensors()[0])) << model;
    }
  });
}

TEST_P(RowCut, WritesToWholeParametersReachTheRows) {
  on_ranks([](const World& world) {
    Bag bag(odd_tensors());
    auto sharded = fully_shard(bag, row_options(world));
    sharded->with_full_params([&] {
      torch::NoGradGuard no_grad;
      for (torch::Tensor parameter : bag->parameters()) parameter.mul_(2);
    });
    Tensors doubled = odd_tensors();
    for (torch::Tensor& tensor : doubled) tensor = tensor * 2;
    expect_values(bag, doubled);
  });
}

TEST(RowCutErrors, ALocalStateDictOfTheOtherCutIsRefused) {
  run_ranks(2, [](const World& world) {
    Bag rows(Tensors{numbers({4, 2}), numbers({2, 4})}), flat(Tensors{numbers({4, 2}), numbers({2, 4})});
    auto sharded_rows = fully_shard(rows, row_options(world));
    Options options = row_options(world);
    options.shard_cut = ShardCut::kFlat;
    auto sharded_flat = fully_shard(flat, options);
    const LocalStateDict values = local_state_dict(*sharded_rows, *rows);
    expect_error([&] { load_local_state_dict(*sharded_flat, *flat, values); }, {"cut rows", "cut flat"});
  });
}

TEST(RowCutErrors, ALocalStateDictOfAnotherDimensionIsRefused) {
  run_ranks(2, [](const World& world) {
    Bag rows(Tensors{numbers({4, 4})}), columns(Tensors{numbers({4, 4})});
    auto sharded_rows = fully_shard(rows, row_options(world));
    auto sharded_columns = fully_shard(columns, inner_options(world));
    const LocalStateDict values = local_state_dict(*sharded_rows, *rows);
    expect_error([&] { load_local_state_dict(*sharded_columns, *columns, values); },
                 {"'p0'", "cut in dimension 0", "cut in dimension 1"});
  });
}

TEST(RowCutErrors, DimensionsThatAreNotThere) {
  run_ranks(2, [](const World& world) {
    Options options = row_options(world);
    options.shard_dim = [](const torch::Tensor&) { return 2; };
    Bag bag(Tensors{numbers({4, 4})});
    expect_error([&] { fully_shard(bag, options); }, {"shard_dim returned 2", "'p0'", "[4, 4]"});
    options.shard_dim = inner_dimension;
    options.shard_cut = ShardCut::kFlat;
    expect_error([&] { fully_shard(bag, options); }, {"shard_dim needs shard_cut=kRows"});
  });
}

TEST(RowCutErrors, RanksThatCutInOtherDimensionsAreNamed) {
  run_ranks(2, [](const World& world) {
    Options options = row_options(world);
    options.shard_dim = [&](const torch::Tensor&) { return world->rank(); };
    Bag bag(Tensors{numbers({4, 4})});
    auto sharded = fully_shard(bag, options);
    expect_error([&] { bag->parameters()[0].sum(); }, {"rank 0 has", "cut in dimension 0", "cut in dimension 1"});
  });
}

TEST(RowCutErrors, UnitsOfOneTreeHaveTheSameCut) {
  run_ranks(2, [](const World& world) {
    auto model = testing::make_tiny_lm({});
    fully_shard(*model->head, row_options(world));
    Options options = row_options(world);
    options.shard_cut = ShardCut::kFlat;
    expect_error([&] { fully_shard(*model, options); }, {"shard_cut"});
  });
}

}  // namespace
}  // namespace fsdp
