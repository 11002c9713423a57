// The planned ranks of a pipeline, one of each stage, which exchange the contents of their collectives.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::planner {

// Each planned rank is a process. It stands for all ranks that hold the same part of the model, which send the same as
// it does. Threads: one at a time.
class PlannedPeers {
 public:
  // `index`: of this process among `count`, in the order of the pipeline. `store`: the same for all of them.
  PlannedPeers(int index, int count, c10::intrusive_ptr<c10d::Store> store)
      : index_(index), count_(count), store_(std::move(store)) {}

  int index() const { return index_; }
  int count() const { return count_; }

  // Returns the bytes of each of them, in their order. All must call this in the same order; waits for them.
  std::vector<std::string> gather(const std::string& own);

  // Leaves bytes under a name that is used once, and waits for those that one of them leaves.
  void post(const std::string& name, const std::string& bytes);
  std::string take(const std::string& name);

  // Call last. The first of them, whose process has the store, waits for the others.
  void leave();

 private:
  int index_;
  int count_;
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t gathers_ = 0;
};

}  // namespace fsdp::planner
