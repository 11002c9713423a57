#include "models/lora.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "models/layers.h"

namespace fsdp::models {
namespace {

int64_t add_below(torch::nn::Module& module, const LoraOptions& options, std::set<std::string>& unused) {
  int64_t added = 0;
  for (const auto& child : module.named_children()) {
    const bool wanted = std::find(options.targets.begin(), options.targets.end(), child.key()) != options.targets.end();
    if (auto* linear = wanted ? child.value()->as<LinearImpl>() : nullptr) {
      linear->add_adapter(options.rank, options.alpha / static_cast<double>(options.rank));
      unused.erase(child.key());
      ++added;
    } else {
      added += add_below(*child.value(), options, unused);
    }
  }
  return added;
}

}  // namespace

int64_t add_lora(torch::nn::Module& root, const LoraOptions& options) {
  for (const at::Tensor& parameter : root.parameters()) parameter.set_requires_grad(false);
  std::set<std::string> unused(options.targets.begin(), options.targets.end());
  const int64_t added = add_below(root, options, unused);
  TORCH_CHECK(unused.empty(), "LoRA: no linear layer is registered as \"", *unused.begin(), "\"");
  return added;
}

void initialize_lora(torch::nn::Module& root) {
  const at::NoGradGuard no_grad;
  for (const auto& module : root.modules()) {
    if (auto* linear = module->as<LinearImpl>(); linear && linear->lora_a.defined()) {
      const double bound = 1.0 / std::sqrt(static_cast<double>(linear->lora_a.size(1)));
      linear->lora_a.uniform_(-bound, bound);
      linear->lora_b.zero_();
    }
  }
}

}  // namespace fsdp::models
