// Counts the bytes that a rank sends to each rank, from the amount of data that each kind of collective must move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/collective_shapes.h"

namespace fsdp::comm {

class PayloadCount {
 public:
  PayloadCount(int rank, int size) : rank_(rank), size_(size), bytes_(static_cast<size_t>(size)) {}

  void add(int peer, uint64_t bytes) { bytes_[static_cast<size_t>(peer)] += peer == rank_ ? 0 : bytes; }
  void add_for_each_peer(uint64_t bytes) {
    for (int peer = 0; peer < size_; ++peer) add(peer, bytes);
  }
  // Each rank reduces a part of nearly equal size and sends its sums to the others.
  void add_all_reduce(int64_t numel, int64_t element_size) {
    const int64_t own = part_of(numel, rank_, size_).numel;
    for (int peer = 0; peer < size_; ++peer) {
      add(peer, static_cast<uint64_t>((part_of(numel, peer, size_).numel + own) * element_size));
    }
  }

  const std::vector<uint64_t>& by_rank() const { return bytes_; }

 private:
  int rank_;
  int size_;
  std::vector<uint64_t> bytes_;
};

}  // namespace fsdp::comm
