// Covers every pair of values of strategy, precision, accumulation, frozen parameters, use_orig_params, recomputation,
// number of ranks and cut in at least one run. Each run is compared with one process.
#include <array>
#include <limits>

#include "engine/engine.h"
#include "fsdp/activation_checkpoint.h"
#include "fsdp/fsdp.h"
#include "fsdp/grad_scaler.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/all_pairs.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::all_pairs;
using testing::batch_of;
using testing::Block;
using testing::BlockImpl;
using testing::Choice;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;
using Tensors = std::map<std::string, torch::Tensor>;

constexpr int kSteps = 3;
constexpr int kPasses = 2;

enum class Precision { kFp64, kFp32, kBf16, kBf16ReducedInFp32, kFp16 };
enum class Accumulation { kNone, kSyncEach, kNoSync, kReplicasLater };
enum class Frozen { kNothing, kBiases, kBlocks };
enum class Recomputation { kNone, kFull, kEverySecond, kSelected };

struct Case {
  ShardingStrategy strategy;
  Precision precision;
  Accumulation accumulation;
  Frozen frozen;
  bool orig;
  Recomputation recomputation;
  int world_size;
  ShardCut cut;

  explicit Case(const Choice& c)
      : strategy(std::array{kFullShard, kShardGradOp, kNoShard, kHybridShard, kHybridShardZero2}[c[0]]),
        precision(static_cast<Precision>(c[1])),
        accumulation(static_cast<Accumulation>(c[2])),
        frozen(static_cast<Frozen>(c[3])),
        orig(c[4] == 0),
        recomputation(static_cast<Recomputation>(c[5])),
        world_size(std::array{1, 2, 3, 4, 8}[c[6]]),
        cut(c[7] == 0 ? ShardCut::kFlat : ShardCut::kRows) {}

  int passes() const { return accumulation == Accumulation::kNone ? 1 : kPasses; }
  at::ScalarType master() const { return precision == Precision::kFp64 ? at::kDouble : at::kFloat; }
  at::ScalarType compute() const {
    return precision == Precision::kFp16                                                 ? at::kHalf
           : precision == Precision::kBf16 || precision == Precision::kBf16ReducedInFp32 ? at::kBFloat16
                                                                                         : master();
  }
  at::ScalarType reduce() const { return precision == Precision::kBf16ReducedInFp32 ? at::kFloat : compute(); }
  // Tolerance of the change of the weights. In fp64 and fp32, sums are in another order. In low precision, gradients
  // are rounded to 8 (bf16) or 11 (fp16) bits once more or once less often than in the reference.
  double tolerance() const {
    switch (precision) {
      case Precision::kFp64:
        return 1e-11;
      case Precision::kFp32:
        return 1e-5;
      case Precision::kFp16:
        return 2e-3;
      default:
        return 2e-2;
    }
  }
};

std::string case_name(const ::testing::TestParamInfo<Choice>& info) {
  const Case c(info.param);
  const char* precision[] = {"fp64", "fp32", "bf16", "bf16fp32", "fp16"};
  const char* accumulation[] = {"one_pass", "sync_each", "no_sync", "replicas_later"};
  const char* frozen[] = {"trainable", "frozen_biases", "frozen_blocks"};
  const char* recomputation[] = {"kept", "recomputed", "every_second", "selected"};
  return c10::str(to_string(c.strategy), "_", precision[static_cast<int>(c.precision)], "_",
                  accumulation[static_cast<int>(c.accumulation)], "_", frozen[static_cast<int>(c.frozen)], "_",
                  c.orig ? "orig" : "flat", "_", recomputation[static_cast<int>(c.recomputation)], "_", c.world_size,
                  "ranks", c.cut == ShardCut::kRows ? "_rows" : "");
}

// ---------------------------------------------------------------- one run

void freeze(TinyLM& model, Frozen frozen) {
  for (auto& entry : model->named_parameters()) {
    const bool bias = entry.key().find("bias") != std::string::npos;
    const bool block = entry.key().rfind("blocks.0", 0) == 0 || entry.key().rfind("blocks.1", 0) == 0;
    if ((frozen == Frozen::kBiases && bias) || (frozen == Frozen::kBlocks && block)) {
      entry.value().set_requires_grad(false);
    }
  }
}

CheckpointPolicy policy_of(Recomputation recomputation) {
  switch (recomputation) {
    case Recomputation::kNone:
      return {};
    case Recomputation::kFull:
      return CheckpointPolicy::full();
    case Recomputation::kEverySecond:
      return CheckpointPolicy::every(2);
    case Recomputation::kSelected:
      return CheckpointPolicy::selected_operators({"aten::mm", "aten::addmm"});
  }
  return {};
}

torch::Tensor loss_of(TinyLM& model, const torch::Tensor& ids, const CheckpointPolicy& policy) {
  torch::Tensor x = model->embed(ids.narrow(1, 0, ids.size(1) - 1));
  int64_t index = 0;
  for (const auto& module : *model->blocks) {
    auto block = std::dynamic_pointer_cast<BlockImpl>(module);
    x = policy.forward(index++, block, x);
  }
  torch::Tensor logits = model->head(model->norm(x));
  logits = logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.narrow(1, 1, ids.size(1) - 1).flatten());
}

torch::Tensor batch(const Case& c, int rank, int step, int pass) { return batch_of(rank, step * c.passes() + pass); }

// Trains in one process with masters in full precision. Each rank's passes run on a copy in the compute dtype, without
// sharding and recomputation.
Tensors train_alone(const Case& c) {
  TinyLM master = make_tiny_lm({}, c.master());
  freeze(master, c.frozen);
  for (int step = 0; step < kSteps; ++step) {
    Tensors sums;
    for (int turn = 0; turn < c.world_size * c.passes(); ++turn) {
      TinyLM low = make_tiny_lm({}, c.compute());
      freeze(low, c.frozen);
      for (size_t i = 0; i < low->parameters().size(); ++i) {
        torch::NoGradGuard no_grad;
        low->parameters()[i].copy_(master->parameters()[i]);
      }
      loss_of(low, batch(c, turn % c.world_size, step, turn / c.world_size), {}).backward();
      for (const auto& [name, gradient] : testing::gradients_of(*low)) {
        if (!gradient.defined()) continue;
        torch::Tensor wide = gradient.to(c.master()) / c.world_size;
        sums[name] = sums.count(name) ? sums[name] + wide : wide;
      }
    }
    torch::NoGradGuard no_grad;
    for (const auto& [name, sum] : sums) master->named_parameters()[name].sub_(sum, 1.0 / 16);
  }
  return weights_of(*master);
}

BackwardOptions backward_options(const Case& c, int pass) {
  const bool last = pass == c.passes() - 1;
  return {.requires_gradient_sync = last || c.accumulation != Accumulation::kNoSync,
          .requires_all_reduce = last || c.accumulation != Accumulation::kReplicasLater};
}

Options options_of(const Case& c, const Ranks& world) {
  Options options = testing::block_options(world, c.strategy, c.orig);
  options.param_dtype = c.compute();
  options.reduce_dtype = c.reduce();
  options.shard_cut = c.cut;
  if (is_hybrid(c.strategy) && world->size() % 2 != 0) options.mesh = make_mesh(world, world->size());
  return options;
}

Tensors train_sharded(const Case& c, const Ranks& world) {
  TinyLM model = make_tiny_lm({}, c.master());
  freeze(model, c.frozen);
  auto sharded = fully_shard(*model, options_of(c, world));
  ShardedGradScaler scaler({.init_scale = 16, .enabled = c.precision == Precision::kFp16});
  for (int step = 0; step < kSteps; ++step) {
    sharded->zero_grad();
    for (int pass = 0; pass < c.passes(); ++pass) {
      torch::Tensor loss = loss_of(model, batch(c, world->rank(), step, pass), policy_of(c.recomputation));
      sharded->backward(scaler.scale(loss), backward_options(c, pass));
    }
    EXPECT_TRUE(scaler.step(*sharded, [&] { testing::descend(sharded->parameters()); }));
    scaler.update();
    EXPECT_EQ(sharded->diagnostics().stats().gathered_bytes, 0);
    EXPECT_EQ(sharded->diagnostics().stats().gradient_buffer_bytes, 0);
  }
  return weights_of(*sharded);
}

class Matrix : public ::testing::TestWithParam<Choice> {};

TEST_P(Matrix, TrainsAsOneProcess) {
  const Case c(GetParam());
  const Tensors before = weights_of(*make_tiny_lm({}, c.master()));
  const Tensors want = train_alone(c);
  run_ranks(c.world_size, [&](Ranks world) {
    for (const auto& [name, tensor] : train_sharded(c, world)) {
      const double change = (want.at(name) - before.at(name)).norm().item<double>();
      const double error = (tensor - want.at(name)).norm().item<double>();
      // Sums in another order round a weight another way, which may be all that differs after small changes.
      const double rounding = std::numeric_limits<float>::epsilon() * want.at(name).norm().item<double>();
      EXPECT_LE(error, c.tolerance() * change + rounding) << name << ", change " << change;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(AllPairs, Matrix, ::testing::ValuesIn(all_pairs({5, 5, 4, 3, 2, 4, 5, 2})), case_name);

}  // namespace
}  // namespace fsdp
