// What training and evaluation take their samples from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/batch.h"

namespace fsdp::trainer {

// Threads: const, so any number may read.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // For messages: "dummy:1024", a file's path.
  virtual std::string name() const = 0;
  // Number of samples.
  virtual int64_t size() const = 0;
  // What one sample is, for messages: "9 tokens".
  virtual std::string sample_text() const = 0;
  // These samples, on the CPU.
  virtual Batch batch(const std::vector<int64_t>& indices) const = 0;
  // A remark on data that look wrong but need not be; empty: there is none.
  virtual std::string remark() const { return {}; }
  // How many predictions the mean loss of a batch with this sample counts of it; at least 1.
  virtual int64_t predictions(int64_t index) const = 0;
};

}  // namespace fsdp::trainer
