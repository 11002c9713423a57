// The fused head and loss of every language model equals the plain loss, unsharded and sharded.
#include <algorithm>
#include <set>
#include <string>

#include "fsdp/fsdp.h"
#include "models/causal_lm.h"
#include "models/lora.h"
#include "models/seq2seq_lm.h"
#include "models/testing/small_models.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using namespace testing;  // fsdp::testing, not GoogleTest's
using models::LanguageModel;
using models::LanguageModelOutput;
using nlohmann::json;
using enum ShardingStrategy;

struct Architecture {
  std::string name;
  json config;
  std::string block;
};

// Those whose heads differ; decoder_families_test has every family, and each with other options.
std::vector<Architecture> architectures() {
  std::vector<Architecture> all = {{"t5", models::small_t5(), "T5Block"}};
  const std::set<std::string> chosen{"llama", "granite", "gemma2", "gpt2"};
  for (const auto& model : models::small_models()) {
    if (chosen.count(model.name) != 0) all.push_back({model.name, model.config, model.block});
  }
  return all;
}

torch::Tensor ids(int64_t batch, int64_t length, int64_t step) {
  return (torch::arange(batch * length) * step % 31).view({batch, length});
}

LanguageModelOutput forward(LanguageModel& model, const torch::Tensor& input_ids, const torch::Tensor& labels) {
  if (auto* causal = dynamic_cast<models::CausalLM*>(&model)) return causal->forward(input_ids, labels);
  return dynamic_cast<models::Seq2SeqLM&>(model).forward(input_ids, labels);
}

class FusedLoss : public ::testing::TestWithParam<Architecture> {
 protected:
  static std::shared_ptr<LanguageModel> build(bool fused, const json& changes, c10::ScalarType dtype = torch::kFloat) {
    const json config = models::changed(GetParam().config, changes);
    std::shared_ptr<LanguageModel> model;
    if (GetParam().name == "t5") {
      model = models::make_seq2seq_lm(config, dtype, torch::kCPU);
    } else {
      model = models::make_causal_lm(config, dtype, torch::kCPU);
    }
    model->initialize();
    model->set_fused_loss(fused);
    return model;
  }
  static auto make(bool fused, const json& changes, c10::ScalarType dtype = torch::kFloat) {
    return seeded([&] { return build(fused, changes, dtype); });
  }
  static json tied(bool tied) { return {{"tie_word_embeddings", tied}}; }
};

double relative_error(const torch::Tensor& got, const torch::Tensor& want) {
  const torch::Tensor exact = want.to(torch::kDouble);
  return ((got.to(torch::kDouble) - exact).norm() / exact.norm().clamp_min(1e-30)).item<double>();
}

void expect_near(const std::map<std::string, torch::Tensor>& got, const std::map<std::string, torch::Tensor>& want,
                 double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) EXPECT_LE(relative_error(got.at(name), tensor), tolerance) << name;
}

// Returns the loss and all gradients for a batch with ignored labels.
std::map<std::string, torch::Tensor> results(LanguageModel& model) {
  torch::Tensor labels = ids(3, 7, 5).clone();
  labels.index_put_({1, 3}, -100);
  labels.index_put_({2, 0}, -100);
  const torch::Tensor loss = forward(model, ids(3, 7, 3), labels).loss;
  loss.backward();
  auto result = gradients_of(model);
  result["loss"] = loss.detach();
  return result;
}

TEST_P(FusedLoss, HasThePlainLossesGradients) {
  for (const bool is_tied : {false, true}) {
    for (const auto& [dtype, tolerance] : {std::pair{torch::kDouble, 1e-11}, {torch::kFloat, 1e-5}}) {
      expect_near(results(*make(true, tied(is_tied), dtype)), results(*make(false, tied(is_tied), dtype)), tolerance);
    }
    const auto exact = results(*make(false, tied(is_tied), torch::kFloat));
    const auto plain = results(*make(false, tied(is_tied), torch::kBFloat16));
    for (const auto& [name, value] : results(*make(true, tied(is_tied), torch::kBFloat16))) {
      EXPECT_EQ(value.scalar_type(), plain.at(name).scalar_type()) << name;
      EXPECT_LE(relative_error(value, exact.at(name)), 2 * relative_error(plain.at(name), exact.at(name)) + 1e-3)
          << name;
    }
  }
}

TEST_P(FusedLoss, LogitsAreThereWithoutItOrWithoutLabels) {
  const auto fused = make(true, tied(false)), plain = make(false, tied(false));
  EXPECT_FALSE(forward(*fused, ids(2, 5, 3), ids(2, 5, 3)).logits.defined());
  EXPECT_TRUE(forward(*plain, ids(2, 5, 3), ids(2, 5, 3)).logits.defined());
  if (auto* causal = dynamic_cast<models::CausalLM*>(fused.get())) {
    const LanguageModelOutput output = causal->forward(ids(2, 5, 3));
    EXPECT_TRUE(same_bits(output.logits, forward(*plain, ids(2, 5, 3), ids(2, 5, 3)).logits));
    EXPECT_FALSE(output.loss.defined());
  }
  fused->set_fused_loss(false);
  EXPECT_TRUE(forward(*fused, ids(2, 5, 3), ids(2, 5, 3)).logits.defined());
}

TEST_P(FusedLoss, AHeadWithAnAdapterIsAnError) {
  const auto model = make(true, tied(false));
  models::add_lora(*model, {.targets = {"lm_head"}});
  expect_error([&] { forward(*model, ids(2, 5, 3), ids(2, 5, 3)); }, {"fused loss", "low-rank adapter"});
  model->set_fused_loss(false);
  forward(*model, ids(2, 5, 3), ids(2, 5, 3));
}

// Every unit is released as soon as an operator on it ends, so the chunks gather the head again and again.
TEST_P(FusedLoss, TrainsInTheStrictestModeAsItDoesAlone) {
  const auto loss_of = [&](const auto& model) { return forward(*model, ids(2, 9, 7), ids(2, 9, 5)).loss; };
  for (const bool is_tied : {false, true}) {
    for (const bool checkpointing : {false, true}) {
      Options options = one_rank_options_for_lists();
      options.auto_wrap_policy = module_name_policy({GetParam().block});
      const auto made = [&] {
        const auto model = build(true, tied(is_tied));
        if (checkpointing) model->set_activation_checkpointing(CheckpointPolicy::full());
        return model;
      };
      expect_trains_alike(made, loss_of, options);
    }
  }
}

struct Trained {
  std::map<std::string, torch::Tensor> weights;
  double loss = 0;  // of the evaluation after training
};

constexpr int kSteps = 2, kPasses = 2, kLength = 8;

torch::Tensor batch_of(int rank, int step, int pass) { return ids(2, kLength, 3 + rank + 5 * step + 7 * pass); }

double evaluated(LanguageModel& model) {
  const torch::NoGradGuard no_grad;
  return forward(model, ids(2, kLength, 11), ids(2, kLength, 2)).loss.item<double>();
}

// The reference: one process trains with the plain loss on all ranks' batches.
Trained train_plain(LanguageModel& model, int ranks) {
  for (int step = 0; step < kSteps; ++step) {
    model.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      for (int pass = 0; pass < kPasses; ++pass) {
        const torch::Tensor batch = batch_of(rank, step, pass);
        (forward(model, batch, batch).loss / (ranks * kPasses)).backward();
      }
    }
    descend(model.parameters());
  }
  return {weights_of(model), evaluated(model)};
}

// Accumulates over several passes in each step. With `no_sync`, only the last pass reduces gradients.
Trained train_sharded(LanguageModel& model, const Options& options, bool no_sync) {
  const auto sharded = fully_shard(model, options);
  for (int step = 0; step < kSteps; ++step) {
    sharded->zero_grad();
    for (int pass = 0; pass < kPasses; ++pass) {
      const torch::Tensor batch = batch_of(options.communicator->rank(), step, pass);
      sharded->set_requires_gradient_sync(!no_sync || pass + 1 == kPasses);
      (forward(model, batch, batch).loss / kPasses).backward();
    }
    descend(sharded->parameters());
  }
  const double loss = evaluated(model);
  return {weights_of(*sharded), loss};
}

TEST_P(FusedLoss, TrainsOverRanksAsThePlainLossDoesAlone) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const bool is_tied : {false, true}) {
      const Trained want = train_plain(*make(false, tied(is_tied)), ranks);
      for (const ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard}) {
        for (const bool no_sync : {false, true}) {
          SCOPED_TRACE(
              c10::str(ranks, " ranks, ", to_string(strategy), is_tied ? ", tied" : "", no_sync ? ", no_sync" : ""));
          std::vector<Trained> got(static_cast<size_t>(ranks));
          run_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
            const auto model = make(true, tied(is_tied));
            if (no_sync) model->set_activation_checkpointing(CheckpointPolicy::full());
            Options options;
            options.communicator = communicator;
            options.sharding_strategy = strategy;
            options.auto_wrap_policy = module_name_policy({GetParam().block});
            got[static_cast<size_t>(communicator->rank())] = train_sharded(*model, options, no_sync);
          });
          for (const Trained& rank : got) {
            EXPECT_NEAR(rank.loss, want.loss, 1e-5 * want.loss);
            expect_near(rank.weights, want.weights, 1e-5);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, FusedLoss, ::testing::ValuesIn(architectures()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp
