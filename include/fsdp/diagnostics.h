// Reports on a sharded module: its units, its memory, its collectives.
//
//   std::cout << sharded->diagnostics().memory_summary();
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::engine {
class Engine;
}  // namespace fsdp::engine

namespace fsdp {

// Counters since fully_shard, for tests and benchmarks.
struct EngineStats {
  int64_t units = 0;  // current number
  // A step ends with the first backward that reduces gradients. Forwards without a backward between them count as one.
  int64_t steps = 0;              // that have ended
  int64_t forwards_of_step = 0;   // since the last step ended
  int64_t backwards_of_step = 0;  // since the last step ended
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t prefetches = 0;         // gathers issued ahead of the first use
  int64_t prefetches_wasted = 0;  // prefetched units that were released without a use
  int64_t gathered_bytes = 0;     // current size of unsharded buffers in use
  int64_t peak_gathered_bytes = 0;
  int64_t gathered_units = 0;  // current number, including the root and gathers in flight
  int64_t peak_gathered_units = 0;
  int64_t gradient_buffer_bytes = 0;
  int64_t peak_gradient_buffer_bytes = 0;
};

// Memory of one kind on this rank, in bytes.
struct MemoryCategory {
  std::string name;
  int64_t current = 0;
  int64_t peak = 0;      // largest amount in use at a time
  int64_t reserved = 0;  // largest amount taken from the allocator, in use or not
};

// The reports: ShardedModule::diagnostics(). None of them communicates, except verify_sharding.
class Diagnostics {
 public:
  explicit Diagnostics(std::shared_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}

  // A table of all units: FQNs, shapes, sizes, padding, and the rank that owns each part.
  std::string describe_units() const;
  EngineStats stats() const;
  // Current and peak memory of the engine on this rank. Excludes activations, the optimizer, and memory that the
  // communicator keeps for itself.
  std::vector<MemoryCategory> memory() const;
  // memory() as a table, followed by `more`: categories that the caller knows, such as its optimizer's state.
  std::string memory_summary(const std::vector<MemoryCategory>& more = {}) const;

  // The message of `error`. For an out-of-memory error, memory_summary(more) and the gathered units are appended.
  // Errors of the engine's own allocations and of operators on sharded parameters contain them already; use this for
  // other allocations of a step:
  //   catch (const std::exception& error) {
  //     std::cerr << sharded->diagnostics().explain_out_of_memory(error) << std::endl;
  //     throw;
  //   }
  std::string explain_out_of_memory(const std::exception& error, const std::vector<MemoryCategory>& more = {}) const;

  // This rank's last 64 collectives in all groups of the tree, oldest first, one on each line:
  //   "rank 1, #41 reduce-scatter of 'layer.3' (reduce, generation 7), 1024 elements of Float: waited for since 12.3 s"
  // Threads: safe; another thread may call it while this one waits.
  std::string collective_log() const;

  // Compares how the ranks shard (units, FQNs, shapes, dtypes, options, world size). A difference is an error on
  // all ranks, which names the ranks and the first difference. Runs automatically before the first gather. Collective.
  void verify_sharding();

 private:
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace fsdp
