#include "setup/tensor_parallel_plan.h"

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

// Lets the model compute its loss over classes that are split over `group`.
void split_head(TrainedModel& model, const std::shared_ptr<Communicator>& group) {
  auto& causal = dynamic_cast<models::CausalLM&>(model.module());
  const auto classes = std::make_shared<SplitClasses>(group, causal.vocab_size());
  causal.set_split_head(std::make_shared<models::SplitHead>(
      models::SplitHead{[classes](const at::Tensor& logits, const at::Tensor& labels) {
                          return classes->mean_cross_entropy(logits, labels, models::kIgnoredLabel);
                        },
                        [classes](const at::Tensor& logits) { return classes->gather(logits); }}));
}

// Tells the model that its hidden states have a part of the positions.
void split_positions(TrainedModel& model, const std::shared_ptr<Communicator>& group) {
  const auto rows = std::make_shared<SplitSequence>(group, /*dim=*/0);
  dynamic_cast<models::CausalLM&>(model.module())
      .set_split_positions(std::make_shared<models::SplitPositions>(
          models::SplitPositions{group->size(), [rows](const at::Tensor& mine) { return rows->gather(mine); }}));
}

}  // namespace

std::vector<TensorParallelRule> tensor_parallel_plan(const Config& config, const TrainedModel& model) {
  const int64_t degree = config.parallelism.tensor_degree;
  const std::string key = c10::str("key \"tensor_parallel_degree\": ", degree);
  const auto* causal = dynamic_cast<const models::CausalLM*>(&model.module());
  if (!causal) {
    throw ConfigError(c10::str(key, " does not apply: the model is ", model.module().name(),
                               ", and only the weights of causal language models can be split; accepted: 1"));
  }
  try {
    std::vector<TensorParallelRule> plan = causal->tensor_parallel_plan();
    check_splits(plan, *causal, static_cast<int>(degree));
    return plan;
  } catch (const c10::Error& error) {
    throw ConfigError(key + ": " + error.what_without_backtrace());
  }
}

TensorParallelOptions tensor_parallel_options(const Config& config, TrainedModel& model,
                                              const std::shared_ptr<Communicator>& group) {
  split_head(model, group);
  TensorParallelOptions options{group, {}};
  if (config.parallelism.splits_positions()) {
    split_positions(model, group);
    options.sequence_dim = 1;
  }
  options.plan = tensor_parallel_plan(config, model);
  return options;
}

}  // namespace fsdp::trainer
