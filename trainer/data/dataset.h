// The source of samples for training and evaluation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/batch.h"

namespace fsdp::trainer {

// Threads: all functions are const, so any number of threads may call them at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Returns a name for messages: "dummy:1024", a file's path.
  virtual std::string name() const = 0;
  // Returns the number of samples.
  virtual int64_t size() const = 0;
  // Returns a description of one sample for messages: "9 tokens".
  virtual std::string sample_text() const = 0;
  // Returns these samples, on the CPU.
  virtual Batch batch(const std::vector<int64_t>& indices) const = 0;
  // Returns a remark on data that look wrong but may be right, or an empty string.
  virtual std::string remark() const { return {}; }
  // Returns the number of this sample's predictions, at least 1: its weight in the mean loss of a batch.
  virtual int64_t predictions(int64_t index) const = 0;
};

}  // namespace fsdp::trainer
