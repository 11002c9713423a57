// The parameters of a module tree, each once, with all places where they are registered.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace fsdp::frontend {

// One registration of a parameter: the FQN of the module that holds it, and its own.
struct ParameterSite {
  std::string module;
  std::string fqn;
};

struct FoundParameter {
  at::Tensor tensor;
  std::vector<ParameterSite> sites;  // in module order; more than one for a shared parameter

  const std::string& fqn() const { return sites.front().fqn; }
  // Returns the FQN of the lowest module below which all sites lie.
  std::string lowest_common_ancestor() const;
};

// A module tree seen from its root.
struct ModuleTree {
  std::vector<FoundParameter> parameters;  // in module order: a module's own, then its children's
  std::unordered_map<const void*, std::vector<std::string>> paths;  // of modules; several if registered repeatedly

  std::unordered_map<const void*, size_t> numbers;  // of parameters, by the identity of the tensor

  // Returns null if the tensor is not among the parameters.
  const FoundParameter* find(const at::Tensor& tensor) const;
};
ModuleTree survey_modules(const torch::nn::Module& root);

// Returns the paths of the modules whose class name (module_class_name) is in the list, outermost first.
std::vector<std::string> paths_of_classes(const torch::nn::Module& root, const std::vector<std::string>& classes);

// A set of paths of modules; "" is the root.
class PathSet {
 public:
  PathSet() = default;
  explicit PathSet(const std::vector<std::string>& paths) { add(paths); }
  void add(const std::vector<std::string>& paths) { paths_.insert(paths.begin(), paths.end()); }
  // Whether the module `path` is in the set or lies below a module of the set.
  bool covers(const std::string& path) const;

 private:
  std::unordered_set<std::string> paths_;
};

std::string join_path(const std::string& prefix, const std::string& name);

}  // namespace fsdp::frontend
