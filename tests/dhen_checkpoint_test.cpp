// Checkpoints of a DHEN whose tables are split over ranks: training resumes from them to the bit, other numbers of
// ranks load them, and tools show and convert them.
#include "models/dhen.h"
#include "support/files/temporary_folder.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/collective_shapes.h"
#include "convert/convert.h"
#include "convert/inspect.h"
#include "formats/hugging_face/hf_folder.h"
#include "formats/own/checkpoint_folder.h"
#include "fsdp/checkpoint.h"
#include "optim/fused_adamw.h"
#include "sparse/row_optimizer.h"
#include "sparse/saved_rows.h"
#include "sparse/split_embedding.h"
#include "support/faults/faulty_file_system.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Combine;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;
using testing::same_bits;
using testing::seeded;
using testing::ShardingCase;
using ::testing::Values;
using World = std::shared_ptr<Communicator>;
using enum ShardingStrategy;

models::DhenConfig small_config() {
  return models::parse_dhen_config({{"num_numeric_features", 3},
                                    {"table_rows", {2, 11, 30}},
                                    {"embedding_width", 8},
                                    {"num_hidden_layers", 1},
                                    {"interactions", {"attention", "cross", "linear"}},
                                    {"interaction_outputs", 2},
                                    {"cross_rank", 3},
                                    {"head_sizes", {9}},
                                    {"initializer_range", 0.3}});
}

// The run of one rank. Different seeds give different weights and rows.
class DhenRun {
 public:
  DhenRun(const World& world, const ShardingCase& sharding, at::ScalarType rows, uint64_t seed)
      : world_(world), embedding_(make_embedding(world, rows, seed)), model_(make_model(seed)) {
    sharded_ = testing::shard(*model_, sharding, testing::options_of(sharding, world));
    adam_ =
        std::make_unique<optim::FusedAdamW>(sharded_->parameters(), optim::FusedAdamWOptions{.learning_rate = 0.05});
    adam_state_ = adam_->named_state();
    row_optimizer_ = std::make_unique<sparse::RowOptimizer>(
        embedding_, sparse::RowOptimizerOptions{sparse::RowRule::kRowWiseAdagrad, 0.1});
  }

  // Runs a training step and returns its loss.
  at::Tensor step(int number) {
    sharded_->zero_grad();
    row_optimizer_->zero_grad();
    const at::Tensor counter = torch::arange(18).view({6, 3}) + 13 * world_->rank() + 29 * number;
    const at::Tensor categorical = (counter * 5).remainder(torch::tensor({2, 11, 30}));
    const at::Tensor loss = model_->forward(counter.to(at::kFloat).sin(), categorical, categorical.sum(1) % 2).loss;
    loss.backward();
    adam_->step();
    row_optimizer_->step();
    return loss.detach();
  }

  CheckpointedRun to_checkpoint() {
    return {*sharded_, *model_, adam_state_.get(), {}, sparse::rows_to_save(*embedding_, row_optimizer_.get())};
  }
  // Returns the dense weights, and the rows and squares that this rank holds. Collective.
  std::map<std::string, at::Tensor> everything() {
    std::map<std::string, at::Tensor> all = testing::weights_of(*sharded_);
    all["rows"] = embedding_->weight().detach().clone();
    all["squares"] = row_optimizer_->squares().clone();
    return all;
  }
  const sparse::SplitEmbedding& embedding() const { return *embedding_; }

 private:
  static std::shared_ptr<sparse::SplitEmbedding> make_embedding(const World& world, at::ScalarType rows,
                                                                uint64_t seed) {
    models::EmbeddingTables tables = small_config().tables();
    tables.seed = seed;
    sparse::SplitEmbeddingOptions options;
    options.dtype = rows;
    return std::make_shared<sparse::SplitEmbedding>(world, tables, options);
  }
  models::Dhen make_model(uint64_t seed) const {
    const auto make = [&] {
      models::Dhen model(small_config(), embedding_, at::kFloat);
      model->initialize();
      return model;
    };
    return seeded(make, seed);
  }

  World world_;
  std::shared_ptr<sparse::SplitEmbedding> embedding_;
  models::Dhen model_;
  std::shared_ptr<ShardedModule> sharded_;
  std::unique_ptr<optim::FusedAdamW> adam_;
  std::unique_ptr<OptimizerState> adam_state_;
  std::unique_ptr<sparse::RowOptimizer> row_optimizer_;
};

ShardingCase over(int ranks) { return {ranks, kFullShard, true, false}; }

class DhenCheckpoints : public ::testing::Test {
 protected:
  // Saves a checkpoint after two steps of `ranks` ranks.
  void save(int ranks, at::ScalarType rows = at::kFloat) {
    run_ranks(ranks, [&](const World& world) {
      DhenRun run(world, over(ranks), rows, 1);
      run.step(0);
      run.step(1);
      save_checkpoint(path, run.to_checkpoint(), R"({"step": 2})", *world);
    });
  }

  testing::UnsyncedFileSystem unsynced;
  const formats::FileSystemGuard guard{unsynced};
  const testing::TemporaryFolder folder;
  const fs::path path = folder.path() / "it";
};

// ---------------------------------------------------------------- training goes on

class DhenResume : public DhenCheckpoints,
                   public ::testing::WithParamInterface<std::tuple<ShardingCase, at::ScalarType, bool>> {};

TEST_P(DhenResume, IsTheUninterruptedRun) {
  const auto& [sharding, rows, async] = GetParam();
  run_ranks(sharding.world_size, [&, sharding = sharding, rows = rows, async = async](const World& world) {
    DhenRun whole(world, sharding, rows, 1);
    AsyncCheckpointer checkpointer(world);
    std::vector<at::Tensor> losses;
    for (int step = 0; step < 4; ++step) {
      if (step == 2 && async) checkpointer.save(path, whole.to_checkpoint(), "{}");
      if (step == 2 && !async) save_checkpoint(path, whole.to_checkpoint(), "{}", *world);
      losses.push_back(whole.step(step));
    }
    checkpointer.finish();
    DhenRun resumed(world, sharding, rows, 2);
    resumed.step(7);  // creates squares, which load_checkpoint must replace
    EXPECT_TRUE(load_checkpoint(path, resumed.to_checkpoint(), *world).optimizer.complete());
    for (int step : {2, 3}) EXPECT_TRUE(same_bits(resumed.step(step), losses[static_cast<size_t>(step)])) << step;
    testing::expect_same(resumed.everything(), whole.everything());
  });
}
std::string dtype_of(at::ScalarType rows) { return rows == at::kFloat ? "fp32" : "bf16"; }

INSTANTIATE_TEST_SUITE_P(All, DhenResume,
                         Combine(Values(over(1), over(2), over(3), ShardingCase{4, kHybridShard, false, false}),
                                 Values(at::kFloat, at::kBFloat16), ::testing::Bool()),
                         [](const auto& info) {
                           return testing::name_of(std::get<0>(info.param)) + "_" + dtype_of(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "_async" : "_sync");
                         });

// ---------------------------------------------------------------- other ranks

// Returns the rows and squares of all ranks, by name.
std::map<std::string, at::Tensor> whole_tables(const fs::path& path) {
  const formats::CheckpointFolder saved(path);
  std::map<std::string, at::Tensor> tables;
  for (const auto& [name, stored] : saved.manifest().tensors) {
    if (name.find("embedding.table.") == std::string::npos) continue;
    tables[name] = at::empty({stored.numel()}, at::TensorOptions(stored.dtype));
    saved.read(name, 0, stored.numel(), tables[name]);
  }
  return tables;
}

class DhenReshards : public DhenCheckpoints,
                     public ::testing::WithParamInterface<std::tuple<std::pair<int, int>, at::ScalarType>> {};

TEST_P(DhenReshards, KeepsRowsAndSquares) {
  const auto& [ranks, rows] = GetParam();
  save(ranks.first, rows);
  const auto want = whole_tables(path);
  EXPECT_EQ(want.size(), 6u);
  run_ranks(ranks.second, [&, ranks = ranks, rows = rows](const World& world) {
    DhenRun run(world, over(ranks.second), rows, 2);
    EXPECT_EQ(load_checkpoint(path, run.to_checkpoint(), *world).user, R"({"step":2})");
    save_checkpoint(folder / "again", run.to_checkpoint(), "{}", *world);
    run.step(2);  // training works after loading
    for (const SplitTensor& tensor : run.to_checkpoint().split) {
      const comm::Part part = comm::part_of(tensor.sizes[0], world->rank(), world->size());
      EXPECT_EQ(tensor.begin, part.begin);
      EXPECT_EQ(tensor.rows.size(0), part.numel);
    }
  });
  testing::expect_same(whole_tables(folder / "again"), want);
}
INSTANTIATE_TEST_SUITE_P(All, DhenReshards,
                         Combine(Values(std::pair(1, 1), std::pair(2, 3), std::pair(3, 2), std::pair(4, 1)),
                                 Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           const auto ranks = std::get<0>(info.param);
                           return std::to_string(ranks.first) + "_to_" + std::to_string(ranks.second) + "_" +
                                  dtype_of(std::get<1>(info.param));
                         });

// The folder contains what the ranks held, not merely what they load again.
TEST_F(DhenCheckpoints, HaveTheTablesOfOneProcess) {
  run_ranks(3, [&](const World& world) {
    DhenRun run(world, over(3), at::kFloat, 1);
    save_checkpoint(path, run.to_checkpoint(), "{}", *world);
  });
  models::EmbeddingTables tables = small_config().tables();
  tables.seed = 1;
  const auto saved = whole_tables(path);
  for (int64_t table : {0, 1, 2}) {
    const at::Tensor want = torch::empty({tables.rows[static_cast<size_t>(table)], tables.width});
    models::fill_initial_rows(tables, table, 0, want);
    EXPECT_TRUE(same_bits(saved.at("model/embedding.table." + std::to_string(table)), want.view(-1)));
  }
}

// ---------------------------------------------------------------- tools

std::vector<std::string> names_in(const nlohmann::json& description) {
  std::vector<std::string> names;
  for (const auto& tensor : description["tensors"]) names.push_back(tensor["name"].get<std::string>());
  return names;
}

void flip_bit(const fs::path& path, std::streamoff at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

TEST_F(DhenCheckpoints, AreShownAndVerified) {
  save(3);
  const nlohmann::json shown = convert::describe(path);
  EXPECT_THAT(names_in(shown),
              AllOf(Contains("model/embedding.table.2"), Contains("optimizer/embedding.table.0/squares")));
  for (const auto& tensor : shown["tensors"]) {
    if (tensor["name"] != "model/embedding.table.2") continue;
    EXPECT_EQ(tensor["shape"], (nlohmann::json{30, 8}));
    EXPECT_EQ(tensor["parts"].size(), 3u);
  }
  EXPECT_THAT(convert::problems(path), IsEmpty());
  const formats::Manifest manifest = formats::CheckpointFolder(path).manifest();
  const formats::StoredPart& part = manifest.tensors.at("optimizer/embedding.table.1/squares").parts.at(1);
  flip_bit(path / manifest.files[part.file].name, static_cast<std::streamoff>(part.offset));
  EXPECT_THAT(convert::problems(path), ElementsAre(AllOf(HasSubstr("optimizer/embedding.table.1/squares"),
                                                         HasSubstr(manifest.files[part.file].name))));
}

TEST_F(DhenCheckpoints, AreConvertedToDcpAndBack) {
  save(2, at::kBFloat16);
  const auto want = whole_tables(path);
  convert::convert(path, folder / "dcp", convert::FolderKind::kDcp);
  EXPECT_THAT(names_in(convert::describe(folder / "dcp")),
              AllOf(Contains("model.embedding.table.0"), Contains("optim.state.embedding.table.2.squares")));
  convert::convert(folder / "dcp", folder / "back", convert::FolderKind::kTraining);
  testing::expect_same(whole_tables(folder / "back"), want);
  run_ranks(3, [&](const World& world) {
    DhenRun run(world, over(3), at::kBFloat16, 2);
    const LoadedCheckpoint loaded = load_checkpoint(folder / "back", run.to_checkpoint(), *world);
    EXPECT_TRUE(loaded.model.complete() && loaded.optimizer.complete());
  });
}

TEST_F(DhenCheckpoints, GiveHuggingFaceFoldersTheirTables) {
  save(2);
  folder.write("config/config.json", R"({"model_type": "dhen"})");
  const auto notes = convert::convert(path, folder / "hf", convert::FolderKind::kHuggingFace,
                                      {.config = folder / "config/config.json"})
                         .notes;
  EXPECT_THAT(notes, Contains(HasSubstr("left out: the optimizer's state")));
  const at::Tensor table = formats::HfFolder(folder / "hf").tensor("embedding.table.1");
  EXPECT_EQ(table.sizes(), (at::IntArrayRef{11, 8}));
  EXPECT_TRUE(same_bits(table.view(-1), whole_tables(path).at("model/embedding.table.1")));
}

}  // namespace
}  // namespace fsdp
