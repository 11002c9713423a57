// The time of a kernel on the tape.
#pragma once

#include "planner/tape/tape.h"
#include "planner/target/cluster.h"
#include "planner/target/stack.h"
#include "planner/time/step_time.h"

namespace fsdp::planner {

struct KernelPrice {
  double seconds = 0;  // on an otherwise idle device
  double least = 0;    // at the peak rates of the data sheets
  WorkKind kind = WorkKind::kMemoryBound;

  bool memory_bound() const { return kind == WorkKind::kMemoryBound || kind == WorkKind::kCopies; }
};

// How a stack changes the kernels of this tape.
struct KernelOptions {
  Stack stack = {};
  at::ScalarType dtype = at::kFloat;  // in which the model computes
  int64_t vocabulary = 0;             // products of this width are the head's, and never in fp8; 0: none are
  bool splits_weights = false;        // whether groups of neighbouring ranks exchange activations, and no parameters
};

// Returns the time of an entry of kind kKernel on the cluster's device. A kernel without bytes is not launched.
KernelPrice price_kernel(const Tape& tape, const TapeEntry& entry, const Cluster& cluster,
                         const KernelOptions& options = {});

// Returns the time that a kernel on the host takes its thread.
double host_kernel_seconds(const TapeEntry& entry, const Cluster& cluster);

// The arithmetic that tensors of this type are multiplied with.
Precision precision_of(at::ScalarType dtype, bool convolution = false);

}  // namespace fsdp::planner
