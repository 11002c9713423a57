// Values saved under two names and loaded into one parameter: accepted if both are bitwise equal, otherwise an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <tuple>

#include "fsdp/fsdp.h"
#include "fsdp/state_dict.h"
#include "state/held_part.h"
#include "state/training_state.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::state::shared_names_test {
namespace {

using namespace testing;  // this project's namespace
using ::testing::AllOf;
using ::testing::HasSubstr;
using World = std::shared_ptr<Communicator>;

constexpr int kRanks = 3;

// Two parameters, or one with two names. Both have the same values, including a NaN. With `with_rest`, there is a third
// parameter.
struct PairImpl : torch::nn::Module {
  PairImpl(bool tied, bool with_rest) {
    const torch::Tensor values = torch::arange(35, at::kDouble).view({7, 5});
    values[1][2] = std::numeric_limits<double>::quiet_NaN();
    first = register_parameter("first", values);
    second = register_parameter("second", tied ? first : values.detach().clone());
    if (with_rest) register_parameter("rest", torch::ones({3}, at::kDouble));
  }
  torch::Tensor first, second;
};
TORCH_MODULE(Pair);

// One rank's run of this module.
struct PairRun {
  PairRun(const World& world, bool tied, bool sharded_too = true) : pair(tied, /*with_rest=*/!sharded_too) {
    Options options;
    options.communicator = world;
    if (!sharded_too) options.ignored_parameters = {pair->first, pair->second};
    sharded = fully_shard(*pair, options);
    if (!sharded_too) return;
    optimizer = std::make_unique<torch::optim::AdamW>(sharded->parameters(), torch::optim::AdamWOptions(0.0));
    state = state_of(*optimizer);
  }
  // A step that changes only the optimizer's state. `last`: the gradient of the second parameter's last element.
  void step(double last) {
    for (const HeldPart& part : held_parts(*sharded)) {
      torch::Tensor leaf = part.leaf;
      leaf.mutable_grad() = torch::ones_like(leaf);
      if (has_last(part)) leaf.grad()[part.numel() - 1].fill_(last);
    }
    optimizer->step();
  }
  // Changes the value of the second parameter's last element, which one rank has.
  void change_last() {
    for (const HeldPart& part : held_parts(*sharded)) {
      if (has_last(part)) part.values().detach()[part.numel() - 1].add_(1);
    }
  }
  static bool has_last(const HeldPart& part) { return part.fqn == "second" && part.numel() > 0 && part.end == 35; }
  TrainingState training_state() { return {{{*sharded, *pair}}, state.get()}; }

  Pair pair;
  std::shared_ptr<ShardedModule> sharded;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  std::unique_ptr<OptimizerState> state;
};

void expect_unchanged(PairRun& run, const FullStateDict& before, const FullOptimizerState& state) {
  for (const auto& [name, value] : full_state_dict(*run.sharded, *run.pair)) {
    EXPECT_TRUE(same_bits(value, before.at(name))) << name;
  }
  const FullOptimizerState now = full_optimizer_state(*run.sharded, *run.state);
  EXPECT_EQ(now.state.at("first").scalars, state.state.at("first").scalars);
  for (const auto& [name, tensor] : now.state.at("first").tensors) {
    EXPECT_TRUE(same_bits(tensor, state.state.at("first").tensors.at(name))) << name;
  }
}

// Returns the parts that a single rank would hold.
ShardedStateDict in_parts(const std::map<std::string, torch::Tensor>& tensors) {
  ShardedStateDict parts;
  for (const auto& [name, tensor] : tensors) {
    parts[name] = {tensor.scalar_type(), tensor.sizes().vec(), {}, {{0, tensor.numel(), tensor.reshape(-1)}}};
  }
  return parts;
}
ShardedOptimizerState in_parts(const FullOptimizerState& whole) {
  ShardedOptimizerState state;
  for (const auto& [fqn, of_parameter] : whole.state) {
    state.state[fqn].scalars = of_parameter.scalars;
    state.state[fqn].tensors = in_parts(of_parameter.tensors);
  }
  state.groups = whole.groups;
  return state;
}

// Whether and how the second name differs, and how the state is loaded.
enum class Differs { kNothing, kValues, kState, kSteps };
enum class Way { kCheckpoint, kFull, kFromRank0, kSharded };

std::string expected_error(Differs differs) {
  switch (differs) {
    case Differs::kValues:
      return "second is other values, expected those of 'first'";
    case Differs::kState:
      return "second/exp_avg is other values, expected those of 'first'";
    case Differs::kSteps:
      return "second's state is other values, expected those of 'first'";
    default:
      return "";
  }
}

class SecondNames : public ::testing::TestWithParam<std::tuple<Way, Differs>> {
 protected:
  // Trains a run of two parameters so that they differ as `differs` says.
  static void train(PairRun& run, Differs differs) {
    run.step(differs == Differs::kState ? 2 : 1);
    if (differs == Differs::kValues) run.change_last();
  }
  void load(PairRun& from, PairRun& to, Way way, Differs differs, const World& world) const {
    if (way == Way::kCheckpoint) {
      load_training_state(folder.path() / "it", to.training_state(), *world);
      return;
    }
    FullOptimizerState state = full_optimizer_state(*from.sharded, *from.state);
    if (differs == Differs::kSteps) state.state.at("second").scalars.at("step") = 7;
    if (way == Way::kSharded) {
      load_sharded_state_dict(*to.sharded, *to.pair, in_parts(full_state_dict(*from.sharded, *from.pair)));
      load_sharded_optimizer_state(*to.sharded, *to.state, in_parts(state));
      return;
    }
    const FullLoadOptions options{.from_rank0 = way == Way::kFromRank0};
    load_full_state_dict(*to.sharded, *to.pair, full_state_dict(*from.sharded, *from.pair), options);
    load_full_optimizer_state(*to.sharded, *to.state, state, options);
  }

  UnsyncedFileSystem unsynced;
  const formats::FileSystemGuard guard{unsynced};
  const testing::TemporaryFolder folder;
};

std::vector<std::tuple<Way, Differs>> ways() {
  std::vector<std::tuple<Way, Differs>> all;
  for (const Way way : {Way::kCheckpoint, Way::kFull, Way::kFromRank0, Way::kSharded}) {
    for (const Differs differs : {Differs::kNothing, Differs::kValues, Differs::kState, Differs::kSteps}) {
      if (way != Way::kCheckpoint || differs != Differs::kSteps) all.emplace_back(way, differs);
    }
  }
  return all;
}
std::string case_name(const ::testing::TestParamInfo<std::tuple<Way, Differs>>& info) {
  const std::vector<std::string> ways{"Checkpoint", "Full", "FromRank0", "Sharded"};
  const std::vector<std::string> differences{"Alike", "OtherValues", "OtherState", "OtherSteps"};
  return ways[static_cast<size_t>(std::get<0>(info.param))] + differences[static_cast<size_t>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(All, SecondNames, ::testing::ValuesIn(ways()), case_name);

TEST_P(SecondNames, LoadWhereTheyAreAlike) {
  const auto [way, differs] = GetParam();
  run_ranks(kRanks, [&, way = way, differs = differs](const World& world) {
    PairRun from(world, /*tied=*/false), to(world, /*tied=*/true);
    train(from, differs);
    save_training_state(folder.path() / "it", from.training_state(), {}, *world);
    to.step(0);
    const FullStateDict before = full_state_dict(*to.sharded, *to.pair);
    const FullOptimizerState state = full_optimizer_state(*to.sharded, *to.state);
    const std::string error = error_of([&] { load(from, to, way, differs, world); });
    if (differs == Differs::kNothing) {
      EXPECT_EQ(error, kNoError);
      const FullOptimizerState wanted = full_optimizer_state(*from.sharded, *from.state);
      const FullOptimizerState got = full_optimizer_state(*to.sharded, *to.state);
      EXPECT_TRUE(
          same_bits(got.state.at("first").tensors.at("exp_avg"), wanted.state.at("first").tensors.at("exp_avg")));
      return;
    }
    EXPECT_THAT(error, HasSubstr(expected_error(differs))) << "rank " << world->rank();
    expect_unchanged(to, before, state);
  });
}

// State under one of the names is state of the parameter, whichever name it is.
TEST(SecondNamesOfState, MayBeTheOnlyOneWithState) {
  run_ranks(kRanks, [](const World& world) {
    PairRun from(world, false), to(world, true);
    from.step(1);
    for (const std::string name : {"first", "second"}) {
      FullOptimizerState state = full_optimizer_state(*from.sharded, *from.state);
      state.state.erase(name);
      load_full_optimizer_state(*to.sharded, *to.state, state);
      EXPECT_EQ(full_optimizer_state(*to.sharded, *to.state).state.at("first").scalars.at("step"), 1) << name;
    }
  });
}

// The same bytes in another memory order are different values.
TEST(SecondNamesOfParts, AreComparedInTheOrderOfTheModel) {
  run_ranks(1, [](const World& world) {
    PairRun from(world, false), to(world, true);
    ShardedStateDict values = sharded_state_dict(*from.sharded, *from.pair, {.offload_to_cpu = true});
    values.at("second").strides = {1, 7};
    EXPECT_THAT(error_of([&] { load_sharded_state_dict(*to.sharded, *to.pair, values); }),
                HasSubstr(expected_error(Differs::kValues)));
    values.at("second").parts[0].values = from.pair->first.detach().t().contiguous().view(-1);
    EXPECT_TRUE(load_sharded_state_dict(*to.sharded, *to.pair, values).complete());
  });
}

TEST(SecondNamesOfUnshardedTensors, LoadWhereTheyAreAlike) {
  UnsyncedFileSystem unsynced;
  const formats::FileSystemGuard guard(unsynced);
  const testing::TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    PairRun from(world, false, /*sharded_too=*/false), to(world, true, /*sharded_too=*/false);
    const auto load = [&] {
      save_training_state(folder.path() / "it", from.training_state(), {}, *world);
      return std::vector<std::string>{
          error_of([&] { load_training_state(folder.path() / "it", to.training_state(), *world); }),
          error_of([&] { load_full_state_dict(*to.sharded, *to.pair, full_state_dict(*from.sharded, *from.pair)); }),
          error_of([&] { load_local_state_dict(*to.sharded, *to.pair, local_state_dict(*from.sharded, *from.pair)); })};
    };
    EXPECT_THAT(load(), ::testing::Each(kNoError));
    from.pair->second.detach()[6][4] = 0;
    EXPECT_THAT(load(), ::testing::Each(HasSubstr(expected_error(Differs::kValues))));
    EXPECT_EQ(to.pair->first[6][4].item<double>(), 34);
  });
}

}  // namespace
}  // namespace fsdp::state::shared_names_test
