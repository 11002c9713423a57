#include "optimizers/registry.h"

#include <c10/util/Exception.h>

#include <utility>

#include "optim/fused_adamw.h"
#include "optim/sgd.h"

namespace fsdp::trainer {

namespace {

optim::FusedAdamWOptions adamw_options(const OptimizerConfig& config) {
  return {.learning_rate = config.learning_rate,
          .beta1 = config.adam_beta1,
          .beta2 = config.adam_beta2,
          .epsilon = config.adam_epsilon,
          .weight_decay = config.weight_decay};
}

optim::SgdOptions sgd_options(const OptimizerConfig& config) {
  return {.learning_rate = config.learning_rate, .momentum = config.sgd_momentum, .weight_decay = config.weight_decay};
}

template <typename Kind, auto options_from>
OptimizerKind kind(const char* name, const char* title, std::vector<const char*>&& keys) {
  return {.name = name,
          .title = title,
          .keys = std::move(keys),
          .make = [](std::vector<at::Tensor> parameters,
                     const OptimizerConfig& config) -> std::unique_ptr<optim::Optimizer> {
            return std::make_unique<Kind>(std::move(parameters), options_from(config));
          },
          .state_tensors = [](const OptimizerConfig& config) { return Kind::state_tensors(options_from(config)); }};
}

}  // namespace

const std::vector<OptimizerKind>& optimizer_kinds() {
  static const std::vector<OptimizerKind> kKinds{
      kind<optim::FusedAdamW, adamw_options>("adamw", "AdamW", {"adam_beta1", "adam_beta2", "adam_epsilon"}),
      kind<optim::Sgd, sgd_options>("sgd", "SGD", {"sgd_momentum"}),
  };
  return kKinds;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerKind& kind : optimizer_kinds()) names.emplace_back(kind.name);
  return names;
}

const OptimizerKind& optimizer_kind(const OptimizerConfig& config) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    if (config.name == kind.name) return kind;
  }
  TORCH_CHECK(false, "optimizer: \"", config.name, "\" is unknown");
}

}  // namespace fsdp::trainer
