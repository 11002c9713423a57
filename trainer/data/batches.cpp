#include "data/batches.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "data/distributed_sampler.h"

namespace fsdp::trainer {

namespace {

int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

int64_t predictions_of(const Dataset& dataset, const std::vector<int64_t>& indices) {
  int64_t count = 0;
  for (int64_t index : indices) count += dataset.predictions(index);
  return count;
}

}  // namespace

int64_t GlobalBatch::samples() const {
  constexpr int64_t kMost = int64_t{1} << 62;
  int64_t product = batch_size;
  for (int64_t factor : {world_size, accumulation_steps}) product = product > kMost / factor ? kMost : product * factor;
  return product;
}

void GlobalBatch::check_fits(const Dataset& dataset) const {
  TORCH_CHECK(dataset.size() >= samples(), dataset.name(), ": holds ", dataset.size(), " samples of ",
              dataset.sample_text(), ", fewer than one global batch: ", samples(), " samples = train_batch_size ",
              batch_size, " * ", world_size, " rank(s) * gradient_accumulation_steps ", accumulation_steps);
}

TrainBatches::TrainBatches(const Dataset& dataset, const Options& options)
    : dataset_(dataset),
      options_(options),
      batches_per_epoch_(dataset.size() / options.global.samples() * options.global.accumulation_steps) {
  options.global.check_fits(dataset);
  start_epoch(0);
}

void TrainBatches::start_epoch(int64_t epoch) {
  epoch_ = epoch;
  next_batch_ = 0;
  order_ = DistributedSampler({.samples = dataset_.size(), .shuffle = options_.shuffle, .seed = options_.seed})
               .indices(epoch);
}

// Returns the samples of this rank's batch number `batch` in this epoch, distributed as DistributedSampler does.
std::vector<int64_t> TrainBatches::batch_indices(int64_t batch) const {
  std::vector<int64_t> indices;
  const int64_t begin = batch * options_.global.batch_size;
  for (int64_t i = begin; i < begin + options_.global.batch_size; ++i) {
    indices.push_back(order_.at(static_cast<size_t>(i * options_.global.world_size + options_.rank)));
  }
  return indices;
}

// Returns the number of predictions of the step that begins with this batch.
int64_t TrainBatches::predictions_of_step(int64_t batch) const {
  const auto begin = order_.begin() + batch * options_.global.batch_size * options_.global.world_size;
  return predictions_of(dataset_, {begin, begin + options_.global.samples()});
}

TrainBatches::Position TrainBatches::position() const {
  return {epoch_, next_batch_ * options_.global.batch_size * options_.global.world_size};
}

int64_t TrainBatches::seek(const Position& position) {
  start_epoch(position.epoch);
  const int64_t per_epoch = batches_per_epoch_ / options_.global.accumulation_steps;
  const int64_t steps = std::min(divide_up(position.samples, options_.global.samples()), per_epoch);
  next_batch_ = steps * options_.global.accumulation_steps;
  return std::max<int64_t>(this->position().samples - position.samples, 0);
}

TrainBatches::WeightedBatch TrainBatches::next() {
  if (next_batch_ == batches_per_epoch_) start_epoch(epoch_ + 1);
  if (next_batch_ % options_.global.accumulation_steps == 0) step_predictions_ = predictions_of_step(next_batch_);
  const std::vector<int64_t> indices = batch_indices(next_batch_++);
  const int64_t batches = options_.global.world_size * options_.global.accumulation_steps;
  return {.batch = dataset_.batch(indices).to(options_.device),
          .weight = static_cast<double>(predictions_of(dataset_, indices) * batches) /
                    static_cast<double>(step_predictions_)};
}

EvalBatches::EvalBatches(const Dataset& dataset, int64_t batch_size, int rank, int world_size, c10::Device device)
    : dataset_(dataset),
      batch_size_(batch_size),
      device_(device),
      rounds_(divide_up(divide_up(dataset.size(), world_size), batch_size)),
      indices_(DistributedSampler({.samples = dataset.size(), .rank = rank, .world_size = world_size}).indices(0)) {}

EvalBatches::CountedBatch EvalBatches::batch(int64_t round) const {
  const auto available = static_cast<int64_t>(indices_.size());
  const int64_t begin = std::min(round * batch_size_, available);
  const int64_t end = std::min(begin + batch_size_, available);
  if (begin == end) return {dataset_.batch({0}).to(device_), 0};
  const std::vector<int64_t> indices(indices_.begin() + begin, indices_.begin() + end);
  return {dataset_.batch(indices).to(device_), predictions_of(dataset_, indices)};
}

}  // namespace fsdp::trainer
