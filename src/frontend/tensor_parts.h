// Cuts parameters into the parts that the ranks of a tensor-parallel group hold.
#pragma once

#include <memory>
#include <optional>

#include "flat/flat_parameter.h"
#include "frontend/module_parameters.h"
#include "frontend/survey.h"
#include "fsdp/options.h"
#include "tensor_parallel/exchange.h"
#include "tensor_parallel/split_plan.h"

namespace fsdp::frontend {

// Returns the exchange of the tree: that of the inner engines, if these have the same group, or a new one; null without
// tensor parallelism. Throws if other options do not go together with it.
std::shared_ptr<tensor_parallel::Exchange> choose_exchange(const Options& options, const Survey& surveyed,
                                                           const ProcessMesh& mesh);

class TensorParts {
 public:
  // `exchange` may be null: then no parameter is split.
  TensorParts(const Options& options, std::shared_ptr<tensor_parallel::Exchange> exchange);

  // Fills in how `parameter` is split. If it is, the value and the module's tensor become the rank's part, whose memory
  // is its own: whole values are freed with the last reference to them.
  void cut(const FoundParameter& parameter, flat::ShardedParameter& sharded);

  // Call when all parameters are cut. Throws on all ranks of the group if a rule matched nothing or plans differ.
  // Collective.
  void check_plan() const;

 private:
  std::shared_ptr<tensor_parallel::Exchange> exchange_;
  std::optional<tensor_parallel::SplitPlan> plan_;
};

}  // namespace fsdp::frontend
