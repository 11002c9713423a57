// The memory-bound kernels that a stack runs as one.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "planner/tape/tape.h"
#include "planner/target/stack.h"

namespace fsdp::planner {

// [Note: what fused kernels move]
// A group is a sequence of memory-bound kernels of the stream that computes, all of forward or all of backward, between
// two products. Run as one, they read what others have made, once, and write what others read. Others are products,
// other groups of the same pass, and the engine. Results of forward that only groups in backward read are not written:
// these groups compute them again, and read what the group in forward has read.
class FusedKernels {
 public:
  // Fuses nothing if `fusion` is kNone; otherwise the tape must have its accesses.
  FusedKernels(const Tape& tape, Fusion fusion);

  // Returns the bytes that the kernel of this entry moves: of the last of a group, those of all; of the others, none.
  int64_t bytes(size_t entry) const;

 private:
  const Tape& tape_;
  std::unordered_map<size_t, int64_t> bytes_;  // of entries in groups
};

}  // namespace fsdp::planner
