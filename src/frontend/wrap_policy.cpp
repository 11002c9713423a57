#include "fsdp/wrap_policy.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>

namespace fsdp {
namespace {

bool is_container(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module);
}

}  // namespace

std::string module_class_name(const torch::nn::Module& module) {
  std::string name = module.name();
  if (size_t colon = name.rfind("::"); colon != std::string::npos) name = name.substr(colon + 2);
  if (name.size() > 4 && name.compare(name.size() - 4, 4, "Impl") == 0) name.resize(name.size() - 4);
  return name;
}

WrapPolicy module_name_policy(std::vector<std::string> class_names) {
  TORCH_CHECK(!class_names.empty(), "fsdp: module_name_policy: no class names given");
  return [class_names = std::move(class_names)](const WrapCandidate& candidate) {
    return std::find(class_names.begin(), class_names.end(), module_class_name(candidate.module)) != class_names.end();
  };
}

WrapPolicy size_policy(int64_t min_numel) {
  TORCH_CHECK(min_numel > 0, "fsdp: size_policy: min_numel ", min_numel, ": must be positive");
  return [min_numel](const WrapCandidate& candidate) {
    return !is_container(candidate.module) && candidate.unassigned_numel >= min_numel;
  };
}

}  // namespace fsdp
