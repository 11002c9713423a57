// Operators that write to whole parameters: [Note: writes to whole parameters] in engine/write_through.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/operator_info.h"
#include "engine/write_through.h"

namespace fsdp::dispatch {

// Surrounds the call of one operator that writes to parameters outside of ShardedModule::with_full_params.
class ParameterWrites {
 public:
  // Whether the operator does so.
  static bool any(const OperatorInfo& info, const torch::jit::Stack& stack);

  // Puts stand-ins in the place of all arguments of the units that are written. Throws autograd's errors for writes
  // that it refuses, and errors of the engine for writes that a shard cannot represent. Collective.
  ParameterWrites(const c10::OperatorHandle& op, const OperatorInfo& info, torch::jit::Stack& stack);
  // Must be called after the operator has succeeded, with its results on `stack`, when no parameter is pinned for it
  // any more: keeps what was written, and puts the arguments in the place of their stand-ins among the results.
  // Collective.
  void finish(torch::jit::Stack& stack);

 private:
  struct StandIn {
    at::Tensor argument;
    at::Tensor tensor;
    at::Tensor before;  // an alias of `tensor`, whose geometry the operator cannot change
    bool written;
  };
  void find_units(const torch::jit::Stack& stack);
  void check_graph(const torch::jit::Stack& stack);
  void replace_arguments(torch::jit::Stack& stack);
  at::Tensor stand_in(const at::Tensor& tensor, bool written);
  void check_geometry() const;
  void restore(c10::IValue& result) const;
  at::Tensor restored(const at::Tensor& result) const;
  engine::WriteThrough* write_to(const engine::Unit* unit);

  const c10::OperatorHandle& op_;
  const OperatorInfo& info_;
  std::deque<engine::WriteThrough> units_;  // in the order of the arguments
  std::vector<StandIn> stand_ins_;
  // A stand-in has no history, so that nothing could be recorded. Operators with out= refuse to record by themselves.
  std::optional<at::NoGradGuard> no_graph_;
};

}  // namespace fsdp::dispatch
