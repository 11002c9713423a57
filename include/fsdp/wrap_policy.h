// Policies that select which modules below an annotated one become units of their own.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp {

// Description of one module, for which a policy decides.
struct WrapCandidate {
  const torch::nn::Module& module;
  std::string fqn;           // of the module, relative to the annotated one
  int64_t unassigned_numel;  // elements of parameters below it that no unit has taken so far
};

// Returns whether the module becomes a unit. Called for children before parents (bottom-up), and not for modules
// without unassigned parameters. An empty function wraps nothing. Any callable of this form is a policy.
using WrapPolicy = std::function<bool(const WrapCandidate&)>;

// Wraps modules of the given class, e.g. module_class_policy<DecoderLayerImpl>().
template <typename... ModuleImpl>
WrapPolicy module_class_policy() {
  return [](const WrapCandidate& candidate) {
    return ((dynamic_cast<const ModuleImpl*>(&candidate.module) != nullptr) || ...);
  };
}

// Wraps modules whose class name (Module::name() without namespaces and without a trailing "Impl") is in the list.
WrapPolicy module_name_policy(std::vector<std::string> class_names);

// Wraps a module if at least `min_numel` elements below it have no unit yet. ModuleList and ModuleDict are skipped, as
// in PyTorch's size_based_auto_wrap_policy: their remaining parameters go to their parent.
WrapPolicy size_policy(int64_t min_numel);

// The class name that module_name_policy compares.
std::string module_class_name(const torch::nn::Module& module);

}  // namespace fsdp
