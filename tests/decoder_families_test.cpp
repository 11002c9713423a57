// Every family of decoders trains in shards as it does in one process: with every strategy, numbers of ranks,
// activation checkpointing, the fused loss, tied weights and adapters.
#include <algorithm>
#include <array>

#include "fsdp/fsdp.h"
#include "models/causal_lm.h"
#include "models/lora.h"
#include "models/testing/small_models.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/all_pairs.h"
#include "support/training/sharding.h"

namespace fsdp::decoder_families_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using models::CausalLM;
using nlohmann::json;
using enum ShardingStrategy;

using Model = std::shared_ptr<CausalLM>;

constexpr int kSteps = 3;

enum class Recomputation { kNone, kFull, kEverySecond };
enum class Adapters { kNone, kOfQueriesAndValues, kOfOutputs };

std::vector<json> families() {
  std::vector<json> configs = models::small_decoders();
  // Four layers, because the fourth is the first of OLMo 3 without a window. Large weights make differences large.
  for (json& config : configs) config.update({{"num_hidden_layers", 4}, {"initializer_range", 0.3}});
  return configs;
}

std::string type_of(const json& config) { return config.at("model_type"); }

CheckpointPolicy policy_of(Recomputation recomputation) {
  switch (recomputation) {
    case Recomputation::kNone:
      return {};
    case Recomputation::kFull:
      return CheckpointPolicy::full();
    case Recomputation::kEverySecond:
      return CheckpointPolicy::every(2);
  }
  return {};
}

std::vector<std::string> targets_of(const json& config, Adapters adapters) {
  if (adapters == Adapters::kOfOutputs) return {"o_proj"};
  if (type_of(config) == "phi3") return {"qkv_proj"};
  return {"q_proj", "v_proj"};
}

// Draws lora_B, too: if it were zero, lora_A would have no gradient in the first step.
void draw_adapters(CausalLM& model) {
  const torch::NoGradGuard no_grad;
  models::initialize_lora(model);
  for (const auto& parameter : model.named_parameters()) {
    if (parameter.key().ends_with(".lora_B")) parameter.value().uniform_(-0.3, 0.3);
  }
}

// `config`: with the changes of a test.
Model make(const json& config, Adapters adapters, c10::ScalarType dtype) {
  const Model model = models::make_causal_lm(config, dtype, torch::kCPU);
  if (adapters != Adapters::kNone) models::add_lora(*model, {.rank = 3, .targets = targets_of(config, adapters)});
  model->initialize();
  draw_adapters(*model);
  return model;
}

// Longer than the windows. Ranks and steps have different tokens.
torch::Tensor batch_of(int rank, int step) { return (torch::arange(18) * (3 + rank + 5 * step) % 31).view({2, 9}); }

torch::Tensor loss_of(const Model& model, const torch::Tensor& ids) { return model->forward(ids, ids).loss; }

// ---------------------------------------------------------------- over ranks

struct Case {
  json config;
  ShardingStrategy strategy;
  int ranks;
  Recomputation recomputation;
  bool fused;
  bool tied;
  Adapters adapters;

  explicit Case(const Choice& c)
      : config(families().at(static_cast<size_t>(c[0]))),
        strategy(std::array{kFullShard, kShardGradOp, kNoShard, kHybridShard, kHybridShardZero2}.at(c[1])),
        ranks(std::array{2, 3, 4}.at(c[2])),
        recomputation(static_cast<Recomputation>(c[3])),
        fused(c[4] == 1),
        tied(c[5] == 1),
        adapters(static_cast<Adapters>(c[6])) {
    config["tie_word_embeddings"] = tied;
  }

  Model make_model() const {
    return seeded([&] { return make(config, adapters, torch::kDouble); });
  }
};

std::string case_name(const ::testing::TestParamInfo<Choice>& info) {
  const Case c(info.param);
  const std::array recomputations = {"", "_recomputed", "_every_second_recomputed"};
  const std::array adapters = {"", "_adapted_queries", "_adapted_outputs"};
  return c10::str(type_of(c.config), "_", to_string(c.strategy), "_", c.ranks, "ranks",
                  recomputations.at(static_cast<size_t>(c.recomputation)), c.fused ? "_fused" : "",
                  c.tied ? "_tied" : "", adapters.at(static_cast<size_t>(c.adapters)));
}

struct Trained {
  std::map<std::string, torch::Tensor> weights;
  std::vector<std::vector<double>> losses;  // by step and rank
};

// Trains with the plain loss and without recomputation on the batches of all ranks.
Trained train_alone(const Case& c) {
  const Model model = c.make_model();
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    result.losses.emplace_back();
    for (int rank = 0; rank < c.ranks; ++rank) {
      const torch::Tensor loss = loss_of(model, batch_of(rank, step));
      (loss / c.ranks).backward();
      result.losses.back().push_back(loss.item<double>());
    }
    descend(model->parameters());
  }
  result.weights = weights_of(*model);
  return result;
}

Options options_of(const Case& c, const std::shared_ptr<Communicator>& world) {
  Options options;
  options.communicator = world;
  options.sharding_strategy = c.strategy;
  options.auto_wrap_policy = module_name_policy({"DecoderLayer"});
  // Three ranks are one group of shards, two and four are two replicas.
  if (is_hybrid(c.strategy)) options.mesh = make_mesh(world, c.ranks == 3 ? 3 : c.ranks / 2);
  return options;
}

// Returns the losses of this rank only.
Trained train_sharded(const Case& c, const std::shared_ptr<Communicator>& world) {
  const Model model = c.make_model();
  model->set_activation_checkpointing(policy_of(c.recomputation));
  model->set_fused_loss(c.fused);
  const auto sharded = fully_shard(*model, options_of(c, world));
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    sharded->zero_grad();
    const torch::Tensor loss = loss_of(model, batch_of(world->rank(), step));
    loss.backward();
    result.losses.push_back({loss.item<double>()});
    descend(sharded->parameters());
  }
  result.weights = weights_of(*sharded);
  return result;
}

class DecoderFamilies : public ::testing::TestWithParam<Choice> {};

// Sums are in another order, so fp64 rounds differently. The tolerance of weights is relative to their change, which is
// zero if they are frozen.
TEST_P(DecoderFamilies, TrainOverRanksAsInOneProcess) {
  const Case c(GetParam());
  const auto before = weights_of(*c.make_model());
  const Trained want = train_alone(c);
  run_ranks(c.ranks, [&](const std::shared_ptr<Communicator>& world) {
    const Trained got = train_sharded(c, world);
    for (size_t step = 0; step < kSteps; ++step) {
      const double loss = want.losses.at(step).at(static_cast<size_t>(world->rank()));
      EXPECT_NEAR(got.losses.at(step).at(0), loss, 1e-12 * loss) << "step " << step;
    }
    ASSERT_EQ(got.weights.size(), want.weights.size());
    for (const auto& [name, tensor] : want.weights) {
      const double change = (tensor - before.at(name)).norm().item<double>();
      const bool trained = c.adapters == Adapters::kNone || name.find(".lora_") != std::string::npos;
      EXPECT_EQ(change > 0, trained) << name;
      EXPECT_LE((got.weights.at(name) - tensor).norm().item<double>(), 1e-11 * change) << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(AllPairs, DecoderFamilies,
                         ::testing::ValuesIn(all_pairs({static_cast<int>(families().size()), 5, 3, 3, 2, 2, 3})),
                         case_name);

// ---------------------------------------------------------------- with one rank

class DecoderFamiliesAlone : public ::testing::TestWithParam<json> {};

// In the strictest mode, with dropout, whose numbers must be the same when they are drawn again. The other process
// keeps all activations.
TEST_P(DecoderFamiliesAlone, RecomputeTheBitsThatTheyWouldKeep) {
  json config = models::changed(GetParam(), {{"attention_dropout", 0.2}, {"tie_word_embeddings", true}});
  if (type_of(config) == "phi3") config["resid_pdrop"] = 0.2;
  Options options = one_rank_options_for_lists();
  options.auto_wrap_policy = module_name_policy({"DecoderLayer"});
  for (const Recomputation recomputation : {Recomputation::kFull, Recomputation::kEverySecond}) {
    for (const Adapters adapters : {Adapters::kNone, Adapters::kOfQueriesAndValues, Adapters::kOfOutputs}) {
      const auto recomputing = [&] {
        const Model model = make(config, adapters, torch::kFloat);
        model->set_activation_checkpointing(policy_of(recomputation));
        return model;
      };
      expect_trains_alike(
          recomputing, [](const Model& model) { return loss_of(model, batch_of(0, 1)); }, options,
          [](torch::nn::Module& plain) { dynamic_cast<CausalLM&>(plain).set_activation_checkpointing({}); });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, DecoderFamiliesAlone, ::testing::ValuesIn(families()),
                         [](const auto& info) { return type_of(info.param); });

}  // namespace
}  // namespace fsdp::decoder_families_test
