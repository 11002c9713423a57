// The memory that the engine allocates, and when.
#include <atomic>
#include <map>
#include <optional>

#include "engine/engine.h"
#include "support/memory/counting_allocator.h"
#include "support/ranks/over_gloo.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using enum ShardingStrategy;
using testing::CountedMemory;
using testing::expect_same;
using testing::run_ranks;
using testing::weights_of;

// Layers of different sizes, each a unit, which can run in any order, between parameters of the root.
struct UnevenImpl : torch::nn::Module {
  UnevenImpl() {
    for (int64_t width : {31, 211, 17, 97, 301, 61, 151}) {
      std::string name = "l" + std::to_string(layers.size());
      layers.push_back(register_module(
          name, torch::nn::Sequential(torch::nn::Linear(16, width), torch::nn::Tanh(), torch::nn::Linear(width, 16))));
      in_order.push_back(in_order.size());
    }
    first = register_module("first", torch::nn::Linear(16, 16));
    last = register_parameter("last", torch::linspace(-1, 1, 16));
  }
  torch::Tensor forward(torch::Tensor x, const std::vector<size_t>& order) {
    x = torch::tanh(first(x));
    for (size_t i : order) x = x + layers[i]->forward(x);
    return (x * last).pow(2).mean();
  }
  std::vector<torch::nn::Sequential> layers;
  torch::nn::Linear first{nullptr};
  torch::Tensor last;
  std::vector<size_t> in_order;
};
TORCH_MODULE(Uneven);

Uneven make_uneven(bool frozen = false) {
  return testing::seeded([&] {
    Uneven net;
    if (frozen) {
      for (size_t i = 0; i < net->layers.size(); i += 2) {
        for (auto& parameter : net->layers[i]->ptr(0)->parameters()) parameter.set_requires_grad(false);
      }
    }
    return net;
  });
}

torch::Tensor input(int rank) { return torch::linspace(-1, 1, 64).view({4, 16}) / (1 + rank); }

struct Case {
  int ranks;
  ShardingStrategy strategy;
  bool frozen;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return c10::str(to_string(info.param.strategy), "_", info.param.ranks, "ranks", info.param.frozen ? "_frozen" : "");
}

class EngineMemory : public ::testing::TestWithParam<Case> {
 protected:
  static Options options(const std::shared_ptr<Communicator>& communicator) {
    Options options;
    options.communicator = communicator;
    options.sharding_strategy = GetParam().strategy;
    if (is_hybrid(GetParam().strategy)) options.mesh = make_mesh(communicator, communicator->size() / 2);
    options.auto_wrap_policy = [](const WrapCandidate& candidate) { return candidate.fqn.size() == 2; };
    return options;
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard}) {
    for (int ranks : {1, 2, 3, 4, 8}) cases.push_back({ranks, strategy, ranks % 2 == 1});
  }
  for (ShardingStrategy strategy : {kHybridShard, kHybridShardZero2}) {
    for (int ranks : {2, 4, 8}) cases.push_back({ranks, strategy, ranks == 4});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, EngineMemory, ::testing::ValuesIn(all_cases()), case_name);

// Returns a function in which all ranks meet.
auto meeting_of(Communicator& communicator) {
  return [&communicator, n = uint64_t{0}]() mutable { communicator.all_gather_bytes("", {"meet", n++, Pass::kUser}); };
}

// Returns how often all ranks together allocate memory in `step`, counted on rank 0.
int64_t allocations_of_all(Communicator& communicator, const std::function<void()>& step) {
  auto meet = meeting_of(communicator);
  meet();
  std::optional<CountedMemory> memory;
  if (communicator.rank() == 0) memory.emplace();
  meet();
  int64_t before = memory ? memory->allocations() : 0;
  meet();
  step();
  meet();
  int64_t allocations = memory ? memory->allocations() - before : 0;
  memory.reset();
  meet();
  return allocations;
}

// Returns how often a step of the plain model allocates.
int64_t allocations_of_plain_step(bool frozen) {
  Uneven plain = make_uneven(frozen);
  auto plain_step = [&] {
    plain->zero_grad();
    plain->forward(input(0), plain->in_order).backward();
  };
  plain_step();
  CountedMemory memory;
  int64_t before = memory.allocations();
  plain_step();
  return memory.allocations() - before;
}

// With keep_memory, a step of the sharded model allocates no more often than a step of the plain one: the engine itself
// does not allocate. The memory that the communicator keeps for sums of all-reduces settles one step later.
TEST_P(EngineMemory, IsAllocatedInTheFirstStepOnlyIfKept) {
  const int64_t expected = allocations_of_plain_step(GetParam().frozen);
  bool all_reduces = GetParam().strategy == kNoShard || is_hybrid(GetParam().strategy);
  run_ranks(GetParam().ranks, [&](std::shared_ptr<Communicator> communicator) {
    Uneven net = make_uneven(GetParam().frozen);
    Options with = options(communicator);
    with.keep_memory = true;
    auto sharded = fully_shard(net, with);
    for (int i = 0; i < 5; ++i) {
      int64_t allocations = allocations_of_all(*communicator, [&] {
        sharded->zero_grad();
        net->forward(input(communicator->rank()), net->in_order).backward();
      });
      if (i > (all_reduces ? 1 : 0) && communicator->rank() == 0) {
        EXPECT_LE(allocations, expected * GetParam().ranks) << "step " << i;
      }
    }
  });
}

struct Largest {
  int64_t root = 0, first = 0, second = 0;  // of the root and of the two largest other units
};
template <typename Bytes>
Largest largest(ShardedModule& sharded, Bytes bytes) {
  Largest found;
  std::vector<int64_t> others = {0, 0};
  for (engine::Unit* unit : sharded.engine().tree().all()) {
    (unit->is_root() ? found.root : others.emplace_back()) = bytes(*unit);
  }
  std::sort(others.rbegin(), others.rend());
  return {found.root, others[0], others[1]};
}

int64_t gradient_bytes(engine::Unit& unit) {
  int64_t sum = 0;
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    sum += unit.gradients().of(i) ? unit.gradients().of(i)->buffer_nbytes() : 0;
  }
  return sum;
}

MemoryCategory category(const ShardedModule& sharded, const std::string& name) {
  for (const MemoryCategory& one : sharded.diagnostics().memory()) {
    if (one.name == name) return one;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST_P(EngineMemory, HoldsTheRootAndTheTwoLargestUnits) {
  if (!reshards_after_forward(GetParam().strategy)) {
    return;  // all units stay gathered
  }
  for (bool keep : {false, true}) {
    run_ranks(GetParam().ranks, [&](std::shared_ptr<Communicator> communicator) {
      Uneven net = make_uneven(GetParam().frozen);
      Options with = options(communicator);
      with.keep_memory = keep;
      auto sharded = fully_shard(net, with);
      for (int i = 0; i < 4; ++i) {
        sharded->zero_grad();
        net->forward(input(communicator->rank()), net->in_order).backward();
      }
      bool aliases = sharded->engine().units().front()->groups().shard == nullptr ||
                     sharded->engine().units().front()->groups().shard->size() == 1;
      auto unsharded = category(*sharded, "unsharded parameters");
      Largest blocks = largest(*sharded, [](engine::Unit& unit) {
        base::MutexLock lock(unit.mutex);
        return schedule::BlockPlaces::rounded(unit.buffers.block_nbytes());
      });
      EXPECT_LE(unsharded.reserved,
                aliases ? schedule::BlockPlaces::kGranularity : blocks.root + blocks.first + blocks.second);
      EXPECT_LE(unsharded.peak, unsharded.reserved);
      EXPECT_EQ(unsharded.current, 0);
      auto buffers = category(*sharded, "gradient buffers");
      EXPECT_LE(buffers.peak, buffers.reserved);
      EXPECT_EQ(buffers.current, 0);
      if (GetParam().strategy == kFullShard && !aliases) {
        // If memory is not kept, a unit's gradients are copied to its buffer while those of the root wait.
        Largest captured = largest(*sharded, gradient_bytes);
        EXPECT_LE(buffers.reserved, captured.root + captured.first + (keep ? captured.second : captured.first));
      }
    });
  }
}

// Units that stay gathered after backward have memory of their own, whether or not an optimizer has made them stale;
// the others need memory for two.
TEST_P(EngineMemory, HoldsEachUnitThatStaysAfterBackward) {
  if (!reshards_after_forward(GetParam().strategy)) {
    return;  // all units stay gathered
  }
  const int64_t expected = allocations_of_plain_step(GetParam().frozen);
  run_ranks(GetParam().ranks, [&](std::shared_ptr<Communicator> communicator) {
    Uneven net = make_uneven(GetParam().frozen);
    Options with = options(communicator);
    with.keep_memory = true;
    auto sharded = fully_shard(net, with);
    for (size_t i : {1, 2, 4, 6}) sharded->set_reshard_after_backward(*net->layers[i], false);
    for (int step = 0; step < 7; ++step) {
      int64_t allocations = allocations_of_all(*communicator, [&] {
        sharded->zero_grad();
        net->forward(input(communicator->rank()), net->in_order).backward();
        torch::NoGradGuard no_grad;
        for (at::Tensor& leaf : sharded->parameters()) {
          if (step % 2 == 1) leaf.neg_();
        }
      });
      if (step > 2 && communicator->rank() == 0) {
        EXPECT_LE(allocations, expected * GetParam().ranks) << step;
      }
    }
    int64_t staying = 0;
    std::vector<int64_t> others = {0, 0};
    for (engine::Unit* unit : sharded->engine().tree().all()) {
      base::MutexLock lock(unit->mutex);
      const int64_t nbytes = schedule::BlockPlaces::rounded(unit->buffers.block_nbytes());
      if (unit->has_own_memory()) {
        staying += nbytes;
      } else {
        others.push_back(nbytes);
      }
    }
    std::sort(others.rbegin(), others.rend());
    EXPECT_LE(category(*sharded, "unsharded parameters").reserved,
              std::max(staying + others[0] + others[1], schedule::BlockPlaces::kGranularity));
  });
}

// A layer without bias is a unit. Its gradient is large, and becomes the buffer that is reduced if it needs no padding.
TEST(GradientsOfLargeParameters, AreNotCopied) {
  for (const auto& [ranks, outputs, fits] :
       {std::tuple(2, 600, true), std::tuple(3, 600, true), std::tuple(3, 601, false)}) {
    std::vector<std::map<std::string, torch::Tensor>> weights(2);
    const int64_t nbytes = int64_t{64} * outputs * 4;
    for (bool keep : {true, false}) {
      testing::run_ranks_over_gloo(
          ranks, [&, outputs = outputs, fits = fits](std::shared_ptr<Communicator> communicator) {
            torch::nn::Sequential net = testing::seeded([&, outputs = outputs] {
              auto head = torch::nn::Linear(torch::nn::LinearOptions(64, outputs).bias(false));
              return torch::nn::Sequential(torch::nn::Linear(16, 64), torch::nn::Tanh(), head);
            });
            Options options;
            options.communicator = communicator;
            options.keep_memory = keep;
            options.auto_wrap_policy = [](const WrapCandidate& candidate) { return candidate.fqn == "2"; };
            auto sharded = fully_shard(*net, options);
            for (int i = 0; i < 3; ++i) {
              sharded->zero_grad();
              net->forward(input(communicator->rank())).pow(2).mean().backward();
              testing::descend(sharded->parameters());
            }
            const int64_t peak = category(*sharded, "gradient buffers").peak, of_root = (16 * 64 + 64) * 4;
            if (!keep) {
              EXPECT_GE(peak, fits ? nbytes : 2 * nbytes);
              EXPECT_LE(peak, (fits ? nbytes : 2 * nbytes) + 2 * of_root + schedule::BlockPlaces::kGranularity);
            }
            auto got = weights_of(*sharded);
            if (communicator->rank() == 0) weights[keep] = got;
          });
    }
    expect_same(weights[0], weights[1]);
  }
}

// Returns the bytes that the communicators hold in addition to headers after backward: summed contributions of other
// ranks.
int64_t staging_after_backward(bool keep_memory) {
  int64_t nbytes = 0;
  testing::run_ranks_over_gloo(3, [&](std::shared_ptr<Communicator> communicator) {
    auto meet = meeting_of(*communicator);
    meet();
    std::optional<CountedMemory> memory;
    if (communicator->rank() == 0) memory.emplace();
    meet();
    torch::nn::Linear net = testing::seeded([] { return torch::nn::Linear(16, 60000); });
    Options options;
    options.communicator = communicator;
    options.keep_memory = keep_memory;
    auto sharded = fully_shard(*net, options);
    for (int i = 0; i < 2; ++i) net->forward(input(communicator->rank())).pow(2).mean().backward();
    meet();
    const int64_t before = memory ? memory->current_bytes() : 0;
    meet();
    communicator->trim();
    communicator->twin()->trim();
    meet();
    if (memory) nbytes = before - memory->current_bytes();
    meet();
    memory.reset();
    meet();
  });
  return nbytes;
}

TEST(CommunicatorMemory, IsFreedAfterBackward) {
  const int64_t contributions = 17 * 60000 * 4 / 3 * 2;  // of two ranks, for the part of one
  EXPECT_LT(staging_after_backward(/*keep_memory=*/false), contributions / 4);
  EXPECT_GE(staging_after_backward(/*keep_memory=*/true), 3 * contributions) << "of each rank";
}

TEST_P(EngineMemory, OfClearedGradientsIsFreedUnlessKept) {
  std::vector<std::map<std::string, torch::Tensor>> weights(2);
  for (bool keep : {true, false}) {
    run_ranks(GetParam().ranks, [&](std::shared_ptr<Communicator> communicator) {
      Uneven net = make_uneven(GetParam().frozen);
      Options with = options(communicator);
      with.keep_memory = keep;
      auto sharded = fully_shard(net, with);
      for (int i = 0; i < 3; ++i) {
        net->forward(input(communicator->rank()), net->in_order).backward();
        EXPECT_GT(category(*sharded, "gradient shards").current, 0);
        testing::descend(sharded->parameters());
        if (i == 1) {
          for (auto& leaf : sharded->parameters()) leaf.mutable_grad().reset();  // as an optimizer's zero_grad does
          continue;
        }
        sharded->zero_grad();
        EXPECT_EQ(category(*sharded, "gradient shards").current > 0, keep);
      }
      auto got = weights_of(*sharded);
      if (communicator->rank() == 0) weights[keep] = got;
    });
  }
  expect_same(weights[0], weights[1]);
}

// The memory that all ranks together hold, from the step on in which all memory lies in arenas.
struct Held {
  int64_t at_most = 0;
  int64_t between_steps = 0;
  // Sums of what each rank reports: gradients before they are cleared, and the memory reserved for gathered parameters.
  std::atomic<int64_t> gradients = 0, gathered = 0;
};

// Trains, and stores the counted memory in `held` on rank 0.
void train_counted(const Options& options, Uneven& net, Held& held) {
  Communicator& communicator = *options.communicator;
  auto meet = meeting_of(communicator);
  meet();
  std::optional<CountedMemory> memory;
  if (communicator.rank() == 0) memory.emplace();
  meet();
  auto sharded = fully_shard(net, options);
  constexpr int kSteps = 5;
  for (int i = 0; i < kSteps; ++i) {
    if (i == 3) {
      meet();
      if (memory) memory->reset_peak();
      meet();
    }
    net->forward(input(communicator.rank()), net->in_order).backward();
    testing::descend(sharded->parameters());
    if (i + 1 == kSteps) held.gradients += category(*sharded, "gradient shards").current;
    sharded->zero_grad();
  }
  held.gathered += category(*sharded, "unsharded parameters").reserved;
  meet();
  if (memory) {
    held.at_most = memory->peak_bytes();
    held.between_steps = memory->current_bytes();
  }
  memory.reset();
  meet();
}

TEST_P(EngineMemory, OfGradientsAndGatheredUnitsIsFreedByDefault) {
  Held kept, given_back;
  for (Held* held : {&kept, &given_back}) {
    testing::run_ranks_over_gloo(GetParam().ranks, [&](std::shared_ptr<Communicator> communicator) {
      Uneven net = make_uneven(GetParam().frozen);
      Options with = options(communicator);
      EXPECT_FALSE(with.keep_memory);
      with.keep_memory = held == &kept;
      train_counted(with, net, *held);
    });
  }
  EXPECT_LE(given_back.at_most, kept.at_most);
  EXPECT_GT(kept.gradients, 0);
  const bool stays = GetParam().strategy == kShardGradOp && GetParam().ranks > 1;
  EXPECT_LE(given_back.between_steps, kept.between_steps - kept.gradients - (stays ? kept.gathered / 2 : 0));
}

// Arenas are made for the order that was seen. In another order all numbers stay the same, and memory comes from
// elsewhere if necessary.
TEST_P(EngineMemory, ServesAnotherOrderToo) {
  const std::vector<std::vector<size_t>> orders = {{0, 2, 5}, {0, 2, 5}, {4, 1, 6}, {1, 1, 4}, {6, 5, 4, 3, 2, 1, 0},
                                                   {}};
  struct Way {
    bool keep_memory, strict;
  };
  std::vector<std::map<std::string, torch::Tensor>> weights;
  for (const Way& way : {Way{false, false}, Way{true, false}, Way{true, true}}) {
    run_ranks(GetParam().ranks, [&](std::shared_ptr<Communicator> communicator) {
      Uneven net = make_uneven(GetParam().frozen);
      Options with = options(communicator);
      with.keep_memory = way.keep_memory;
      auto sharded = fully_shard(net, with);
      sharded->engine().gatherer().set_strict(way.strict);  // if strict, there is no arena
      for (const auto& order : orders) {
        sharded->zero_grad();
        net->forward(input(communicator->rank()), order).backward();
        testing::descend(sharded->parameters());
      }
      auto got = weights_of(*sharded);
      if (communicator->rank() == 0) weights.push_back(got);
    });
    expect_same(weights.front(), weights.back());
  }
}

TEST(MemorySummary, HasARowForEachCategory) {
  torch::nn::Linear linear(16, 16);
  auto sharded = fully_shard(*linear, testing::one_rank_options());
  std::string summary = sharded->diagnostics().memory_summary({{"optimizer state", 1 << 20, 2 << 20, 3 << 20}});
  for (const char* part :
       {"rank 0, MiB", "current", "peak", "reserved", "parameter shards", "gradient shards", "unsharded parameters",
        "gradient buffers", "optimizer state                 1.00        2.00        3.00", "total"}) {
    EXPECT_THAT(summary, ::testing::HasSubstr(part));
  }
}

}  // namespace
}  // namespace fsdp
