// One operator of a deferred initialisation, as it was called.
//
// Operators form a graph: each knows which storages it needs and which operator has written them last before it. What
// nothing needs any more goes by itself. A storage is told by its *twin*, a storage on the meta device.
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
  // A deferred storage that is among the arguments.
  struct Input {
    c10::Storage twin;
    std::shared_ptr<RecordedOperator> writer;  // null when nothing was written before
    c10::Device device;
    bool read = true;  // whether its elements matter; false where all of them are overwritten, or only shapes count
    bool written = false;
  };
  // A result in memory of its own: where it stands among the defined tensors of the results, and its shape (over its
  // twin).
  struct Output {
    size_t position;
    at::Tensor shape;
  };

  explicit RecordedOperator(c10::OperatorHandle op_) : op(std::move(op_)) {}
  // Hands a draw that was not run over to the sequence, in which later draws depend on it.
  ~RecordedOperator();
  RecordedOperator(const RecordedOperator&) = delete;
  RecordedOperator& operator=(const RecordedOperator&) = delete;

  uint64_t number = 0;  // in the order of recording
  c10::OperatorHandle op;
  bool fills = false;           // what it writes does not depend on what was there
  torch::jit::Stack arguments;  // deferred tensors stand there as tensors over their twins
  std::vector<Input> inputs;    // each storage once
  std::vector<Output> outputs;
  std::vector<std::pair<at::Tensor, uint32_t>> borrowed;  // ordinary arguments that are not copied, with their versions

  // Where its draw stands, if it draws random numbers.
  std::shared_ptr<DrawSequence> draws;
  size_t draw = 0;
};

using OperatorPtr = std::shared_ptr<RecordedOperator>;

}  // namespace fsdp::deferred
