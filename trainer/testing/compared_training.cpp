#include "testing/compared_training.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "loop/whole_passes.h"
#include "models/tabular_model.h"
#include "setup/distinct_parameters.h"
#include "setup/sharding_options.h"
#include "sparse/split_embedding.h"
#include "support/ranks/thread_ranks.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

namespace {

std::unique_ptr<Dataset> training_data(const TrainedModel& model, const Config& config, const Subject& subject) {
  return model.open_dataset(
      {.text = subject.dataset, .role = DatasetRole::kTrain, .seed = static_cast<uint64_t>(config.steps.seed)});
}

TrainBatches batches_of(const Config& config, const Dataset& dataset, int rank, int world_size) {
  return {dataset,
          {.global = {config.data.train_batch_size, world_size, config.steps.gradient_accumulation_steps},
           .rank = rank,
           .shuffle = config.data.shuffle,
           .seed = static_cast<uint64_t>(config.steps.seed)}};
}

// Embedding tables in one process: whole, with a dense gradient.
class PlainTables {
 public:
  // Creates the embedding of `model` if it is a model of tabular data.
  PlainTables(models::PretrainedModel& model, const Config& config) : config_(config) {
    auto* tabular = dynamic_cast<models::TabularModel*>(&model);
    if (tabular == nullptr) return;
    models::WholeEmbedding embedding(tabular->tables(), at::kFloat);
    rows_ = embedding->weight;
    squares_ = at::zeros({rows_.size(0), 1});
    tabular->set_embedding(embedding.ptr());
  }
  bool has(const at::Tensor& parameter) const { return rows_.defined() && rows_.is_same(parameter); }
  // Takes a step. `factor`: of the learning rate.
  void step(double factor) {
    if (!rows_.defined()) return;
    const at::NoGradGuard no_grad;
    at::Tensor change = rows_.grad();
    if (config_.optimizer.sparse_optimizer == sparse::RowRule::kRowWiseAdagrad) {
      squares_ += change.square().mean(1, /*keepdim=*/true);
      change = change / (squares_.sqrt() + 1e-8);
    }
    rows_ -= change * (factor * config_.optimizer.sparse_learning_rate.value_or(0.01));
  }

 private:
  const Config& config_;
  at::Tensor rows_, squares_;
};

using Pieces = std::vector<sparse::EmbeddingPiece>;

// Returns copies of this rank's pieces of the split tables.
Pieces pieces_of(const models::PretrainedModel& model) {
  const auto* tabular = dynamic_cast<const models::TabularModel*>(&model);
  if (tabular == nullptr) return {};
  Pieces pieces = dynamic_cast<const sparse::SplitEmbedding&>(*tabular->embedding()).pieces();
  for (sparse::EmbeddingPiece& piece : pieces) piece.values = piece.values.clone();
  return pieces;
}

// Joins the pieces of all ranks to the table that WholeEmbedding has.
at::Tensor whole_tables(const std::vector<Pieces>& ranks) {
  std::vector<at::Tensor> parts;
  for (size_t table = 0; table < ranks[0].size(); ++table) {
    for (const Pieces& pieces : ranks) parts.push_back(pieces[table].values);
  }
  return at::cat(parts);
}

// Runs a forward and a backward for each batch of each rank.
double pass_by_pass(const TrainedModel& model, std::vector<TrainBatches>& ranks, int64_t passes) {
  const double share = 1.0 / static_cast<double>(passes * static_cast<int64_t>(ranks.size()));
  double sum = 0;
  for (TrainBatches& batches : ranks) {
    for (int64_t pass = 0; pass < passes; ++pass) {
      const at::Tensor loss = model.loss(batches.next().batch);
      (loss * share).backward();
      sum += loss.item<double>() * share;
    }
  }
  return sum;
}

// Runs one forward and one backward for the global batch.
double all_at_once(const TrainedModel& model, TrainBatches& batches) {
  const at::Tensor loss = model.loss(batches.next().batch);
  loss.backward();
  return loss.item<double>();
}

// Returns the part of a weight that affects the loss. Softmax ignores a number added to all scores of a query, so the
// gradient of a key bias consists of rounding errors only, which AdamW turns into steps.
at::Tensor what_counts(const std::string& name, const at::Tensor& weight) {
  if (!name.ends_with("c_attn.bias") && !name.ends_with("qkv.bias")) return weight;
  const auto parts = weight.chunk(3);
  return at::cat({parts[0], parts[2]});
}

std::unique_ptr<torch::optim::Optimizer> plain_optimizer(const Config& config,
                                                         const std::vector<at::Tensor>& parameters) {
  if (config.optimizer.name == "sgd") {
    const auto options = torch::optim::SGDOptions(1.0)
                             .momentum(config.optimizer.sgd_momentum)
                             .weight_decay(config.optimizer.weight_decay);
    return std::make_unique<torch::optim::SGD>(parameters, options);
  }
  TORCH_CHECK(config.optimizer.name == "adamw", "no reference for the optimizer ", config.optimizer.name);
  const auto options =
      torch::optim::AdamWOptions(1.0).weight_decay(config.optimizer.weight_decay).eps(config.optimizer.adam_epsilon);
  return std::make_unique<torch::optim::AdamW>(parameters, options);
}

}  // namespace

Config compared_config() {
  Config config;
  config.steps.max_steps = 6;
  config.optimizer.warmup_steps = 2;
  config.optimizer.learning_rate = 1e-2;
  config.optimizer.weight_decay = 0.1;
  config.steps.clip_grad_norm = 0.5;
  config.precision.dtype = c10::kFloat;
  return config;
}

Training train_plainly(const Config& config, int world_size, const Subject& subject) {
  Config whole = config;
  whole.data.train_batch_size *= world_size * config.steps.gradient_accumulation_steps;
  whole.steps.gradient_accumulation_steps = 1;
  const auto model = make_trained_model(subject.make_model(), config);
  PlainTables tables(model->module(), config);
  const auto dataset = training_data(*model, config, subject);
  TrainBatches global = batches_of(whole, *dataset, 0, 1);
  std::vector<TrainBatches> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.push_back(batches_of(config, *dataset, rank, world_size));
  const auto parameters = distinct_parameters(model->module());
  std::vector<at::Tensor> dense = parameters;
  std::erase_if(dense, [&](const at::Tensor& parameter) { return tables.has(parameter); });
  const auto optimizer = plain_optimizer(config, dense);
  Training training;
  for (int64_t step = 0; step < config.steps.max_steps; ++step) {
    const double factor = step < 2 ? step / 2.0 : (6.0 - step) / 4.0;
    optimizer->param_groups()[0].options().set_lr(config.optimizer.learning_rate * factor);
    model->module().zero_grad();
    training.losses.push_back(subject.has_batch_statistics
                                  ? pass_by_pass(*model, ranks, config.steps.gradient_accumulation_steps)
                                  : all_at_once(*model, global));
    training.grad_norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, config.steps.clip_grad_norm));
    optimizer->step();
    tables.step(factor);
  }
  for (const auto& p : model->module().named_parameters()) training.weights[p.key()] = p.value().detach().clone();
  return training;
}

Training train_in_shards(const Config& config, int world_size, const Subject& subject) {
  std::vector<std::shared_ptr<models::PretrainedModel>> models;
  for (int rank = 0; rank < world_size; ++rank) models.push_back(subject.make_model());
  std::vector<Training> ranks(static_cast<size_t>(world_size));
  std::vector<Pieces> pieces(static_cast<size_t>(world_size));
  testing::run_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
    const auto rank = static_cast<size_t>(communicator->rank());
    const auto model = make_trained_model(models[rank], config);
    if (auto* separate = model->separate_parameters()) separate->make(communicator, at::kCPU, std::nullopt);
    const auto handle = fully_shard(model->module(), sharding_options(config, model->module(), communicator));
    const auto dataset = training_data(*model, config, subject);
    TrainBatches batches = batches_of(config, *dataset, communicator->rank(), world_size);
    WholePasses passes(config.steps, *model, *handle);
    TrainingRun run(config, passes, model->separate_parameters(), batches);
    for (int64_t step = 0; step < config.steps.max_steps; ++step) {
      const StepResult result = run.step();
      ranks[rank].losses.push_back(result.loss.value());
      ranks[rank].grad_norms.push_back(result.grad_norm);
      ranks[rank].steps.push_back(result);
    }
    ranks[rank].stats = handle->diagnostics().stats();
    pieces[rank] = pieces_of(model->module());
    handle->for_each_full_parameter(
        [&](const std::string& name, const at::Tensor& full) { ranks[rank].weights[name] = full.clone(); });
  });
  if (!pieces[0].empty()) ranks[0].weights["embedding.weight"] = whole_tables(pieces);
  const auto steps = static_cast<size_t>(config.steps.max_steps);
  for (const Training& rank : ranks) {
    for (size_t step = 0; step < steps; ++step) {
      const double norm = ranks[0].grad_norms[step];
      EXPECT_TRUE(rank.grad_norms[step] == norm || !std::isfinite(norm)) << "step " << step;
      EXPECT_EQ(rank.steps[step].skipped, ranks[0].steps[step].skipped) << "step " << step;
    }
  }
  for (size_t step = 0; step < steps; ++step) {
    for (size_t rank = 1; rank < ranks.size(); ++rank) ranks[0].losses[step] += ranks[rank].losses[step];
    ranks[0].losses[step] /= world_size;
  }
  return ranks[0];
}

void expect_same(const Training& actual, const Training& expected, double tolerance) {
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(actual.losses[step], expected.losses[step], tolerance * expected.losses[step]) << "step " << step;
    EXPECT_NEAR(actual.grad_norms[step], expected.grad_norms[step], tolerance * expected.grad_norms[step])
        << "step " << step;
  }
  for (const auto& [name, weight] : actual.weights) {
    const at::Tensor difference = what_counts(name, weight - expected.weights.at(name));
    const at::Tensor other = what_counts(name, expected.weights.at(name));
    EXPECT_LE(difference.norm().item<double>(), tolerance * other.norm().item<double>()) << name;
  }
}

}  // namespace fsdp::trainer
