#include "frontend/unit_assignment.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

namespace fsdp::frontend {
namespace {

// Parameters that belong to no unit yet, by their numbers in module order.
struct Unassigned {
  std::vector<size_t> numbers;
  int64_t numel = 0;

  void add(Unassigned other) {
    if (numbers.size() < other.numbers.size()) std::swap(numbers, other.numbers);
    numbers.insert(numbers.end(), other.numbers.begin(), other.numbers.end());
    numel += other.numel;
  }
};

// One walk over the tree, from the leaves up: each module passes the parameters without a unit to its parent.
class Assignment {
 public:
  Assignment(const WrapPolicy& policy, std::vector<FoundParameter> parameters,
             const std::unordered_set<const void*>& annotated)
      : policy_(policy), parameters_(std::move(parameters)), annotated_(annotated) {
    // A shared parameter belongs to the lowest common ancestor of its holders, so no unit deeper than that takes it.
    for (size_t number = 0; number < parameters_.size(); ++number) {
      by_owner_[parameters_[number].lowest_common_ancestor()].add({{number}, parameters_[number].tensor.numel()});
    }
  }

  std::vector<UnitSpec> run(const torch::nn::Module& root) {
    Unassigned all;
    if (policy_) {
      all = below(root, "");
    } else {
      all.numbers.resize(parameters_.size());
      std::iota(all.numbers.begin(), all.numbers.end(), 0);
    }
    take({"", &root}, std::move(all));
    return std::move(specs_);
  }

 private:
  Unassigned below(const torch::nn::Module& module, const std::string& path) {
    Unassigned left;
    for (const auto& child : module.named_children()) {
      const std::string child_path = join_path(path, child.key());
      Unassigned of_child = below(*child.value(), child_path);
      if (becomes_unit(*child.value(), child_path, of_child)) {
        take({child_path, child.value().get()}, std::move(of_child));
      } else {
        left.add(std::move(of_child));
      }
    }
    if (auto own = by_owner_.find(path); own != by_owner_.end()) {
      left.add(std::move(own->second));
      by_owner_.erase(own);
    }
    return left;
  }

  bool becomes_unit(const torch::nn::Module& module, const std::string& path, const Unassigned& unassigned) const {
    return !unassigned.numbers.empty() && annotated_.count(&module) == 0 && policy_({module, path, unassigned.numel});
  }

  void take(const engine::AnnotatedModule& module, Unassigned unassigned) {
    if (unassigned.numbers.empty()) return;
    std::sort(unassigned.numbers.begin(), unassigned.numbers.end());
    UnitSpec& spec = specs_.emplace_back(UnitSpec{{{module}}, {}, /*is_root=*/module.fqn.empty()});
    for (size_t number : unassigned.numbers) spec.parameters.push_back(std::move(parameters_[number]));
  }

  const WrapPolicy& policy_;
  std::vector<FoundParameter> parameters_;
  std::unordered_map<std::string, Unassigned> by_owner_;
  const std::unordered_set<const void*>& annotated_;
  std::vector<UnitSpec> specs_;
};

}  // namespace

std::vector<UnitSpec> assign_units(const torch::nn::Module& root, const WrapPolicy& policy,
                                   std::vector<FoundParameter> parameters,
                                   const std::unordered_set<const void*>& annotated) {
  return Assignment(policy, std::move(parameters), annotated).run(root);
}

std::vector<UnitSpec> assign_singly(const torch::nn::Module& root, const std::vector<FoundParameter>& parameters) {
  std::vector<UnitSpec> specs;
  for (const FoundParameter& parameter : parameters) {
    specs.push_back({{{{"", &root}}, /*automatic=*/true}, {parameter}});
  }
  return specs;
}

}  // namespace fsdp::frontend
