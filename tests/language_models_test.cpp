// The models of src/models in the engine: built without memory and trained in shards, they equal those of one process.
#include "fsdp/backends.h"
#include "fsdp/deferred_init.h"
#include "fsdp/fsdp.h"
#include "models/causal_lm.h"
#include "models/testing/small_models.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using namespace testing;  // fsdp::testing, not GoogleTest's
using models::SmallModel;

class LanguageModels : public ::testing::TestWithParam<SmallModel> {
 protected:
  // Makes models with dropout, so that random operators must repeat their numbers, too.
  static auto maker(bool tied) {
    nlohmann::json changes = {{"tie_word_embeddings", tied}};
    for (const std::string& key : GetParam().dropout_keys) models::set_dropout(changes, key, 0.2);
    return [config = models::changed(GetParam().config, changes)] {
      return models::make_causal_lm(config, torch::kFloat, torch::kCPU);
    };
  }
};

TEST_P(LanguageModels, TrainInShardsAsPlainOnesDo) {
  const auto ids = (torch::arange(18) * 7 % 31).view({2, 9});
  const auto loss_of = [&](const std::shared_ptr<models::CausalLM>& model) { return model->forward(ids, ids).loss; };
  for (const bool tied : {false, true}) {
    expect_trains_alike(maker(tied), loss_of);
    Options blocks = one_rank_options_for_lists();
    blocks.auto_wrap_policy = module_name_policy({GetParam().block});
    expect_trains_alike(maker(tied), loss_of, blocks);
  }
}

TEST_P(LanguageModels, MayBeBuiltWithoutMemory) {
  for (const bool tied : {false, true}) {
    for (int rank = 0; rank < 3; ++rank) {
      Options options;
      options.communicator = make_fake_communicator(rank, 3);
      options.auto_wrap_policy = module_name_policy({GetParam().block});
      const auto eager = seeded(maker(tied));
      const auto deferred = seeded([&] { return deferred_init(maker(tied)); });
      EXPECT_TRUE(is_deferred(deferred->named_parameters()["lm_head.weight"]));
      const auto want = fully_shard(*eager, options), got = fully_shard(*deferred, options);
      const auto shards = got->shard_slices();
      size_t i = 0;
      for (const ShardSlice& slice : want->shard_slices()) {
        EXPECT_EQ(shards[i].fqn, slice.fqn);
        EXPECT_TRUE(torch::equal(shards[i].data, slice.data)) << slice.fqn;
        ++i;
      }
      EXPECT_EQ(i, shards.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, LanguageModels, ::testing::ValuesIn(models::small_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp
