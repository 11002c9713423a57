// The table of optimizers that the config key `optimizer` names.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "optim/optimizer.h"

namespace fsdp::trainer {

struct OptimizerKind {
  const char* name;               // the value of the key
  const char* title;              // in messages
  std::vector<const char*> keys;  // the config keys that not all optimizers have
  std::unique_ptr<optim::Optimizer> (*make)(std::vector<at::Tensor> parameters, const OptimizerConfig& config);
  // Returns how many tensors like the parameter the state of each parameter has.
  int64_t (*state_tensors)(const OptimizerConfig& config);
};

// The optimizers in the order of the documentation.
const std::vector<OptimizerKind>& optimizer_kinds();
std::vector<std::string> optimizer_names();
// Returns the optimizer that the config names, which must be in the table.
const OptimizerKind& optimizer_kind(const OptimizerConfig& config);

}  // namespace fsdp::trainer
