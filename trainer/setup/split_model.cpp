#include "setup/split_model.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <string>

#include "config/errors.h"
#include "models/causal_lm.h"
#include "tensor_parallel/split_plan.h"

namespace fsdp::trainer {

namespace {

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

// Throws if a rank would get nothing of a parameter.
void check_splits(const std::vector<TensorParallelRule>& rules, const torch::nn::Module& model, int degree) {
  tensor_parallel::SplitPlan plan(rules, /*rank=*/0, degree);
  for (const auto& parameter : model.named_parameters()) {
    plan.of({module_of(parameter.key())}, parameter.key(), parameter.value().sizes());
  }
}

}  // namespace

void check_can_be_split(const Config& config, const TrainedModel& model) {
  const int64_t degree = config.parallelism.tensor_degree;
  const std::string key = c10::str("key \"tensor_parallel_degree\": ", degree);
  const auto* causal = dynamic_cast<const models::CausalLM*>(&model.module());
  if (!causal) {
    throw ConfigError(c10::str(key, " does not apply: the model is ", model.module().name(),
                               ", and only the weights of causal language models can be split; accepted: 1"));
  }
  try {
    check_splits(causal->tensor_parallel_plan(), *causal, static_cast<int>(degree));
  } catch (const c10::Error& error) {
    throw ConfigError(key + ": " + error.what_without_backtrace());
  }
}

TensorParallelOptions split_over(const std::shared_ptr<Communicator>& group, const Config& config,
                                 TrainedModel& model) {
  return dynamic_cast<models::CausalLM&>(model.module()).split_over(group, config.parallelism.splits_positions());
}

}  // namespace fsdp::trainer
