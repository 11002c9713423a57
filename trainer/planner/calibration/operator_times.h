// The times of operators on the CPU, measured while a program runs.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "planner/tape/product_work.h"

namespace fsdp::planner {

// One call of an operator that is one kernel of a plan, with the sizes by which plans price it.
struct OperatorSample {
  std::string name;   // "aten::add.Tensor", as on tapes
  int64_t bytes = 0;  // KernelTraffic::bytes
  std::optional<ProductWork> work = {};
  double seconds = 0;
};

// Observes all threads while it exists. Operators that another one calls count as a part of it, except conversions of
// the engine's shards. Only one may exist at a time. Threads: no other thread may run operators while it is made or
// destroyed.
class OperatorTimes {
 public:
  OperatorTimes();
  ~OperatorTimes();
  OperatorTimes(const OperatorTimes&) = delete;
  OperatorTimes& operator=(const OperatorTimes&) = delete;

  // Returns the samples so far, and clears their list.
  std::vector<OperatorSample> take();
  void add(OperatorSample sample);

 private:
  at::CallbackHandle callback_;
  std::mutex mutex_;
  std::vector<OperatorSample> samples_;
};

}  // namespace fsdp::planner
