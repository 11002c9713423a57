// Policies that say which modules below an annotated one become units of their own.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp {

// What a policy is asked about one module.
struct WrapCandidate {
  const torch::nn::Module& module;
  std::string fqn;           // of the module, relative to the annotated one
  int64_t unassigned_numel;  // elements of parameters below it that no unit has taken so far
};

// Returns whether the module becomes a unit. Modules are asked children first (bottom-up); a module without
// unassigned parameters is not asked. An empty function wraps nothing. Any callable of this form is a policy.
using WrapPolicy = std::function<bool(const WrapCandidate&)>;

// Wraps modules of the given class, e.g. module_class_policy<LlamaDecoderLayerImpl>().
template <typename... ModuleImpl>
WrapPolicy module_class_policy() {
  return [](const WrapCandidate& candidate) {
    return ((dynamic_cast<const ModuleImpl*>(&candidate.module) != nullptr) || ...);
  };
}

// Wraps modules whose class name (Module::name() without namespaces and without a trailing "Impl") is in the list.
WrapPolicy module_name_policy(std::vector<std::string> class_names);

// Wraps a module when at least `min_numel` elements below it have no unit yet. ModuleList and ModuleDict are passed
// over, as in PyTorch's size_based_auto_wrap_policy: what is left below them goes to their parent.
WrapPolicy size_policy(int64_t min_numel);

// The class name that module_name_policy compares.
std::string module_class_name(const torch::nn::Module& module);

}  // namespace fsdp
