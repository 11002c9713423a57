// Results of selected operators, kept from forward for recomputation.
#pragma once

#include <optional>
#include <vector>

#include "recompute/ambient_state.h"
#include "recompute/operator_selection.h"
#include "recompute/transient_graph.h"
#include "torch_seams/operator_interception.h"

namespace fsdp::recompute {

// [Note: writes to kept results]
// linear adds the bias in place to the result of mm. So before an operator writes to the memory of a kept result, the
// kept result is copied to memory of its own. This covers writes inside the region. A later write changes the version
// of the kept result, or of a result of the region that shares its memory, and is an error.
class KeptResults {
 public:
  // `generators` are the generators whose state a kept random operator changes.
  KeptResults(const OperatorSelection& selection, std::vector<at::Generator> generators)
      : selection_(selection), generators_(std::move(generators)) {}

  // Calls the operator and keeps its results.
  void record(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run);
  // Replaces the arguments on the stack by the results of call `index`.
  void replay(size_t index, const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  // Call before an operator that is not selected.
  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  // Call with the results of the region.
  void watch(const std::vector<at::Tensor>& results);
  // Throws if a kept result was written to after the region.
  void check_versions() const;

  bool selects(const c10::OperatorHandle& op) const { return selection_.contains(op); }
  size_t size() const { return calls_.size(); }
  void clear();

 private:
  struct Versioned {
    explicit Versioned(const at::Tensor& result);
    at::Tensor tensor;  // an alias that shares the version counter
    uint32_t version;
  };
  // One result of an operator: a tensor, a list of tensors, or a value of another type.
  struct Result {
    std::vector<Versioned> tensors;
    bool is_list = false;
    c10::IValue other;
  };
  struct Call {
    c10::OperatorName name;
    std::vector<Result> results = {};
    std::optional<RandomState> random = {};  // after a random operator
  };
  static Result keep(const c10::IValue& value);
  static c10::IValue hand_out(const Result& result);
  template <typename Visit>
  void visit_kept(const Visit& visit);

  const OperatorSelection& selection_;
  std::vector<at::Generator> generators_;
  std::vector<Call> calls_;
  std::vector<Versioned> watched_;
};

// Records results in forward, with gradients enabled ([Note: the first run with kept results]).
class Recorder : public seams::OperatorInterceptor {
 public:
  explicit Recorder(KeptResults& kept) : kept_(kept) {}
  void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) override;

 private:
  KeptResults& kept_;
  TransientGraph graph_;
};

// Replays results in recomputation.
class Replayer : public seams::OperatorInterceptor {
 public:
  explicit Replayer(KeptResults& kept) : kept_(kept) {}
  void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) override;
  // Throws if forward called selected operators more often than recomputation did.
  void finish() const;

 private:
  KeptResults& kept_;
  size_t next_ = 0;
};

}  // namespace fsdp::recompute
