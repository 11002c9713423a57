// One operator of a deferred initialisation, as it was called.
//
// Operators form a graph: each one refers to the storages that it needs and to the operators that wrote them last
// before it. Operators that are no longer needed are freed automatically. A storage is identified by its *twin*, a
// storage on the meta device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace fsdp::deferred {

class DrawSequence;

struct RecordedOperator {
  // A deferred storage that appears in the arguments.
  struct Input {
    c10::Storage twin;
    std::shared_ptr<RecordedOperator> writer;  // null if nothing was written before
    c10::Device device;
    bool read = true;  // false if all its elements are overwritten, or only its shape matters
    bool written = false;
  };
  // A result in memory of its own: its position among the defined tensors of the results, and its shape (over its
  // twin).
  struct Output {
    size_t position;
    at::Tensor shape;
  };

  explicit RecordedOperator(c10::OperatorHandle op_) : op(std::move(op_)) {}
  // Passes a draw that has not run to its sequence, because later draws depend on it.
  ~RecordedOperator();
  RecordedOperator(const RecordedOperator&) = delete;
  RecordedOperator& operator=(const RecordedOperator&) = delete;

  uint64_t number = 0;  // in the order of recording
  c10::OperatorHandle op;
  bool fills = false;           // what it writes does not depend on the previous contents
  torch::jit::Stack arguments;  // deferred tensors are represented by tensors over their twins
  std::vector<Input> inputs;    // each storage at most once
  std::vector<Output> outputs;
  std::vector<std::pair<at::Tensor, uint32_t>> borrowed;  // ordinary arguments, not copied, with versions

  // The sequence and the position of its draw, if it draws random numbers.
  std::shared_ptr<DrawSequence> draws;
  size_t draw = 0;
};

using OperatorPtr = std::shared_ptr<RecordedOperator>;

}  // namespace fsdp::deferred
