// A barrier over a key-value store, whose operations grow with the number of ranks and not with its square.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

namespace fsdp {

// Ranks count themselves in blocks of 64. The rank that completes a block counts the block among 64 blocks, and so on;
// the one that completes the last block says that all have arrived. So a rank needs three operations or a few more, and
// one for each look at whether all have come. c10d's own barrier (store_based_barrier) has one counter for all, which
// cannot say who is missing. Used by one thread.
class StoreBarrier {
 public:
  // `store`: the group's own, which outlives this object. It is used for one barrier.
  StoreBarrier(c10d::Store& store, int size) : store_(store), size_(size) {}

  // Once for each rank.
  void arrive(int rank);
  bool is_complete();
  // The ranks that have not arrived, in order. Looks at each block, and at the ranks of those that are not complete.
  std::vector<int> missing();

 private:
  c10d::Store& store_;
  const int size_;
};

}  // namespace fsdp
