// Samples of equal length, cut from a sequence of tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/token_source.h"

namespace fsdp::trainer {

// Sample i is tokens [i*L, (i+1)*L) of the source, L = sequence_length(); tokens that fill no sample are left
// out.
class Dataset {
 public:
  // A source that holds no whole sample is an error.
  Dataset(std::unique_ptr<TokenSource> source, int64_t sequence_length);

  std::string name() const { return source_->name(); }
  int64_t size() const { return source_->size() / sequence_length_; }  // in samples
  int64_t sequence_length() const { return sequence_length_; }

  // The samples of `indices` as a tensor [indices, sequence_length], int64, on the CPU.
  at::Tensor batch(const std::vector<int64_t>& indices) const;

 private:
  std::unique_ptr<TokenSource> source_;
  int64_t sequence_length_;
};

enum class DatasetRole : uint8_t { kTrain, kEval };

// The data set that the config's key `dataset` (or `eval_dataset`) describes as `spec`: "dummy", "dummy:N", a
// file. Dummy data differs between the roles.
Dataset open_dataset(const std::string& spec, DatasetRole role, int64_t sequence_length, int64_t vocab_size,
                     uint64_t seed);

}  // namespace fsdp::trainer
