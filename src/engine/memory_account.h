// The memory of one engine: its pools of buffers, how much of it each purpose holds, and the words for having too
// little.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/buffer_pool.h"
#include "engine/unit_tree.h"
#include "fsdp/fully_shard.h"

namespace fsdp::engine {

// Threads: safe, except that reserve() and share_shards() run between passes.
class MemoryAccount {
 public:
  MemoryAccount(const UnitContext& context, const UnitTree& tree);

  // The memory of gathered parameters, and of captured gradients on their way to the leaves.
  BufferPool& parameters() { return parameters_; }
  const BufferPool& parameters() const { return parameters_; }
  BufferPool& gradients() { return gradients_; }
  const BufferPool& gradients() const { return gradients_; }

  // Makes transient buffers come from arenas that are at least this large, from now on. They never shrink: if the order
  // of units changes from step to step, they fit the order that needs most. BufferPool::reserve says when this has no
  // effect.
  void reserve(int64_t parameters_nbytes, int64_t gradients_nbytes);
  // Shares the shards of all units among ranks that share memory. Throws if there is too little memory. Collective.
  void share_shards();

  // See Diagnostics::memory.
  std::vector<MemoryCategory> categories();
  // Returns the bytes of all categories, and of the memory on this device that none of them contains. `more`: memory of
  // the caller, such as optimizer state.
  std::vector<std::pair<std::string, int64_t>> now(const std::vector<MemoryCategory>& more);
  // Returns a heading, the table of all categories and `more`, and the names of the gathered units. Takes the units'
  // locks.
  std::string report(const std::vector<MemoryCategory>& more = {});

  // Appends report() to an out-of-memory error, at most once. `doing`: the action that needed the memory. Leaves other
  // errors unchanged.
  void explain(c10::Error& error, const std::string& doing);
  // Runs `body`, and explains an out-of-memory error from it. `doing()` returns the action. Must be called without
  // holding locks of units.
  template <typename Doing, typename Body>
  auto explaining(const Doing& doing, const Body& body) {
    try {
      return body();
    } catch (c10::Error& error) {
      explain(error, doing());
      throw;
    }
  }

 private:
  int64_t gradient_shards_nbytes();  // the current bytes; updates the peak

  const UnitContext& context_;
  const UnitTree& tree_;
  BufferPool parameters_;
  BufferPool gradients_;
  int64_t reserved_for_parameters_ = 0;
  int64_t reserved_for_gradients_ = 0;
  std::atomic<int64_t> peak_gradient_shards_{0};
};

// Returns the table of Diagnostics::memory_summary.
std::string memory_table(int rank, const std::vector<MemoryCategory>& categories);

// Whether a message contains MemoryAccount::report().
bool has_memory_report(const std::string& message);

}  // namespace fsdp::engine
