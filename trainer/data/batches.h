// The batches that one rank runs, for training and for evaluation.
#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "data/dataset.h"

namespace fsdp::trainer {

// The samples in one optimizer step of all ranks together.
struct GlobalBatch {
  int64_t batch_size = 1;  // of one rank in one pass
  int64_t world_size = 1;
  int64_t accumulation_steps = 1;

  // Throws an error that names the numbers and keys if `dataset` has fewer samples than one global batch.
  void check_fits(const Dataset& dataset) const;
  // Returns batch_size * world_size * accumulation_steps, at most 2^62.
  int64_t samples() const;
};

// This rank's batches of training data, epoch after epoch without end. The incomplete last global batch of an epoch is
// dropped.
class TrainBatches {
 public:
  struct Options {
    GlobalBatch global;
    int rank = 0;
    bool shuffle = true;
    uint64_t seed = 0;
    c10::Device device = c10::kCPU;  // device of the batches
  };
  // `dataset` must outlive this object.
  TrainBatches(const Dataset& dataset, const Options& options);

  struct WeightedBatch {
    Batch batch;  // of batch_size samples
    // The factor of this batch's mean loss in the mean over the batches of all ranks and passes of its step: its number
    // of predictions divided by their mean number. The step's loss and gradients are thus means over all predictions.
    double weight = 1.0;
  };
  WeightedBatch next();
  // Returns the epoch, from 0, of the batch that next() returned last.
  int64_t epoch() const { return epoch_; }

  // The position in the data: all ranks together have used `samples` samples of `epoch`.
  struct Position {
    int64_t epoch = 0;
    int64_t samples = 0;
    bool operator==(const Position&) const = default;
  };
  Position position() const;
  // Continues after `position`. If `position` comes from a run with another global batch size, continues at the next
  // multiple of this run's. Returns how many samples are skipped for that.
  int64_t seek(const Position& position);

 private:
  void start_epoch(int64_t epoch);
  std::vector<int64_t> batch_indices(int64_t batch) const;
  int64_t predictions_of_step(int64_t batch) const;

  const Dataset& dataset_;
  Options options_;
  int64_t batches_per_epoch_;
  int64_t epoch_ = 0;
  int64_t next_batch_ = 0;
  std::vector<int64_t> order_;    // of the samples of all ranks in this epoch
  int64_t step_predictions_ = 0;  // of all ranks, in the step of the last batch that next() returned
};

// This rank's batches of evaluation data: every sample is evaluated once, on one rank. All ranks have the same number
// of rounds, as sharded models require; a rank that has no samples left gets a filler batch with 0 predictions.
class EvalBatches {
 public:
  struct CountedBatch {
    Batch batch;              // of 1 to batch_size samples
    int64_t predictions = 0;  // 0 for a filler
  };
  // `dataset` must outlive this object.
  EvalBatches(const Dataset& dataset, int64_t batch_size, int rank, int world_size, c10::Device device = c10::kCPU);

  int64_t rounds() const { return rounds_; }
  CountedBatch batch(int64_t round) const;

 private:
  const Dataset& dataset_;
  int64_t batch_size_;
  c10::Device device_;
  int64_t rounds_;
  std::vector<int64_t> indices_;
};

}  // namespace fsdp::trainer
