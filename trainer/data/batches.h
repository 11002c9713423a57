// The batches that one rank runs, for training and for evaluation.
#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "data/dataset.h"

namespace fsdp::trainer {

// Samples in one optimizer step over all ranks.
struct GlobalBatch {
  int64_t batch_size = 1;  // of one rank and pass
  int64_t world_size = 1;
  int64_t accumulation_steps = 1;

  // Throws, naming numbers and keys, when `dataset` holds fewer samples than one global batch.
  void check_fits(const Dataset& dataset) const;
  // batch_size * world_size * accumulation_steps; at most 2^62.
  int64_t samples() const;
};

// This rank's batches of training data, epoch after epoch without end. An epoch's incomplete last global
// batch is dropped.
class TrainBatches {
 public:
  struct Options {
    GlobalBatch global;
    int rank = 0;
    bool shuffle = true;
    uint64_t seed = 0;
    c10::Device device = c10::kCPU;  // of the batches
  };
  // `dataset` must outlive this object.
  TrainBatches(const Dataset& dataset, const Options& options);

  struct WeightedBatch {
    Batch batch;  // of batch_size samples
    // What the mean loss of this batch counts in the mean over the batches of all ranks and passes of its step: its
    // predictions over their mean number. So the step's loss is the mean over all predictions, and so are gradients.
    double weight = 1.0;
  };
  WeightedBatch next();
  // Of the batch that next() returned last, from 0.
  int64_t epoch() const { return epoch_; }

  // How much of the data is used: `samples` of `epoch`, by all ranks together.
  struct Position {
    int64_t epoch = 0;
    int64_t samples = 0;
    bool operator==(const Position&) const = default;
  };
  Position position() const;
  // Goes on behind `position`, which may be that of a run with another global batch: then at the next multiple of this
  // one. Returns how many samples are left out by that.
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
  int64_t step_predictions_ = 0;  // of all ranks in the step of the batch that next() returned last
};

// This rank's batches of evaluation data: every sample is on one rank once. All ranks have the same number of
// rounds, as sharded models need; where a rank has nothing left its batch is a filler that counts nothing.
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
