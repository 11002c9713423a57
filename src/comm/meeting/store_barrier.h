// A barrier over a key-value store. Its number of store operations is linear, not quadratic, in the number of ranks.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>
#include <string>
#include <vector>

namespace fsdp::comm {

// Ranks count themselves in blocks of 64. The rank that completes a block counts that block in a block of 64 blocks,
// and so on; the rank that completes the last block announces that all have arrived. So a rank needs four operations
// or a few more, and one for each check whether all have arrived. c10d's own barrier (store_based_barrier) has one
// counter for all ranks, which cannot tell which ranks are missing. Used by one thread.
class StoreBarrier {
 public:
  // `store`: the store of this group alone, which must outlive this object. It is used for one barrier.
  StoreBarrier(c10d::Store& store, int size) : store_(store), size_(size) {}

  // Must be called once for each rank.
  void arrive(int rank);
  bool is_complete();
  // Ends the barrier for all ranks that have not seen it complete yet, those that come later among them: it is complete
  // for them, but why_abandoned() is `why`, which must not be empty.
  void abandon(const std::string& why);
  // Returns the reason if a rank has abandoned the barrier. Valid after is_complete() has returned true.
  std::optional<std::string> why_abandoned();
  // Returns the ranks that have not arrived, in order. Reads each block, and the ranks of the incomplete blocks.
  std::vector<int> missing();

 private:
  c10d::Store& store_;
  const int size_;
};

}  // namespace fsdp::comm
