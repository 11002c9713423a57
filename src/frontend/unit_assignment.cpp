#include "frontend/unit_assignment.h"

#include <algorithm>

namespace fsdp {
namespace {

class Assignment {
 public:
  Assignment(const WrapPolicy& policy, std::vector<FoundParameter> parameters,
             const std::unordered_set<const void*>& annotated)
      : policy_(policy), unassigned_(std::move(parameters)), annotated_(annotated) {}

  std::vector<UnitPlan> run(const torch::nn::Module& root) {
    if (policy_) {
      visit_children(root, "");
    }
    take_below({"", &root});
    return std::move(plans_);
  }

 private:
  void visit_children(const torch::nn::Module& module, const std::string& path) {
    for (const auto& child : module.named_children()) {
      std::string child_path = join_path(path, child.key());
      visit_children(*child.value(), child_path);
      ask(*child.value(), child_path);
    }
  }

  void ask(const torch::nn::Module& module, const std::string& path) {
    int64_t numel = 0;
    for (const FoundParameter& parameter : unassigned_) {
      numel += belongs_below(parameter, path) ? parameter.tensor.numel() : 0;
    }
    bool any = std::any_of(unassigned_.begin(), unassigned_.end(),
                           [&](const FoundParameter& parameter) { return belongs_below(parameter, path); });
    if (any && annotated_.count(&module) == 0 && policy_({module, path, numel})) {
      take_below({path, &module});
    }
  }

  // A shared parameter belongs to the lowest common ancestor of its holders, so no unit deeper than that takes it.
  static bool belongs_below(const FoundParameter& parameter, const std::string& path) {
    return is_at_or_below(parameter.lowest_common_ancestor(), path);
  }

  void take_below(const AnnotatedModule& module) {
    auto rest = std::stable_partition(unassigned_.begin(), unassigned_.end(), [&](const FoundParameter& parameter) {
      return belongs_below(parameter, module.fqn);
    });
    if (rest != unassigned_.begin()) {
      plans_.push_back({{{module}}, {unassigned_.begin(), rest}, /*is_root=*/module.fqn.empty()});
      unassigned_.erase(unassigned_.begin(), rest);
    }
  }

  const WrapPolicy& policy_;
  std::vector<FoundParameter> unassigned_;
  const std::unordered_set<const void*>& annotated_;
  std::vector<UnitPlan> plans_;
};

}  // namespace

std::vector<UnitPlan> assign_units(const torch::nn::Module& root, const WrapPolicy& policy,
                                   std::vector<FoundParameter> parameters,
                                   const std::unordered_set<const void*>& annotated) {
  return Assignment(policy, std::move(parameters), annotated).run(root);
}

std::vector<UnitPlan> assign_singly(const torch::nn::Module& root, const std::vector<FoundParameter>& parameters) {
  std::vector<UnitPlan> plans;
  for (const FoundParameter& parameter : parameters) {
    plans.push_back({{{{"", &root}}, /*automatic=*/true}, {parameter}});
  }
  return plans;
}

}  // namespace fsdp
