#include "frontend/module_parameters.h"

#include <algorithm>
#include <functional>

#include "fsdp/wrap_policy.h"
#include "schedule/module_path.h"

namespace fsdp::frontend {
namespace {

class Collector {
 public:
  void visit(const torch::nn::Module& module, const std::string& path) {
    tree_.paths[&module].push_back(path);
    for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
      add(entry.value(), {path, join_path(path, entry.key())});
    }
    for (const auto& child : module.named_children()) visit(*child.value(), join_path(path, child.key()));
  }
  ModuleTree take() { return std::move(tree_); }

 private:
  void add(const at::Tensor& tensor, ParameterSite site) {
    auto [it, is_new] = tree_.numbers.emplace(tensor.unsafeGetTensorImpl(), tree_.parameters.size());
    if (is_new) tree_.parameters.push_back({tensor, {}});
    tree_.parameters[it->second].sites.push_back(std::move(site));
  }

  ModuleTree tree_;
};

std::string parent_path(const std::string& path) {
  size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

}  // namespace

std::string join_path(const std::string& prefix, const std::string& name) {
  return name.empty() ? prefix : prefix.empty() ? name : prefix + "." + name;
}

bool PathSet::covers(const std::string& path) const {
  std::string at = path;
  while (!paths_.empty() && paths_.count(at) == 0) {
    if (at.empty()) return false;
    at = parent_path(at);
  }
  return !paths_.empty();
}

std::vector<std::string> paths_of_classes(const torch::nn::Module& root, const std::vector<std::string>& classes) {
  std::vector<std::string> paths;
  if (classes.empty()) return paths;
  std::function<void(const torch::nn::Module&, const std::string&)> visit = [&](const torch::nn::Module& module,
                                                                                const std::string& path) {
    if (std::find(classes.begin(), classes.end(), module_class_name(module)) != classes.end()) {
      paths.push_back(path);
      return;
    }
    for (const auto& child : module.named_children()) visit(*child.value(), join_path(path, child.key()));
  };
  visit(root, "");
  return paths;
}

std::string FoundParameter::lowest_common_ancestor() const {
  std::string ancestor = sites.front().module;
  for (const ParameterSite& site : sites) {
    while (!schedule::is_at_or_below(site.module, ancestor)) ancestor = parent_path(ancestor);
  }
  return ancestor;
}

const FoundParameter* ModuleTree::find(const at::Tensor& tensor) const {
  const auto found = numbers.find(tensor.unsafeGetTensorImpl());
  return found == numbers.end() ? nullptr : &parameters[found->second];
}

ModuleTree survey_modules(const torch::nn::Module& root) {
  Collector collector;
  collector.visit(root, "");
  return collector.take();
}

}  // namespace fsdp::frontend
