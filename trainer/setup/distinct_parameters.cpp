#include "setup/distinct_parameters.h"

#include <torch/nn/module.h>

#include <unordered_set>

namespace fsdp::trainer {

std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  }
  return parameters;
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : distinct_parameters(module)) count += parameter.numel();
  return count;
}

}  // namespace fsdp::trainer
