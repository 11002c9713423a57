#include "setup/transformer_policy.h"

#include <algorithm>
#include <set>

namespace fsdp::trainer {

namespace {

// Large modules that are not part of a block: embeddings and heads.
class LargeOutsideBlocks {
 public:
  explicit LargeOutsideBlocks(const models::PretrainedModel& model) : blocks_(model.block_class_names()) {
    visit(model);
  }
  bool operator()(const WrapCandidate& candidate) const {
    return candidate.unassigned_numel >= kLarge && outside_.count(&candidate.module) > 0;
  }

 private:
  static constexpr int64_t kLarge = 1 << 18;

  void visit(const torch::nn::Module& module) {
    if (std::find(blocks_.begin(), blocks_.end(), module_class_name(module)) != blocks_.end()) return;
    if (!module.parameters(/*recurse=*/false).empty()) outside_.insert(&module);
    for (const auto& child : module.children()) visit(*child);
  }

  std::vector<std::string> blocks_;
  std::set<const torch::nn::Module*> outside_;
};

}  // namespace

WrapPolicy transformer_policy(const models::PretrainedModel& model, const std::vector<std::string>& more_classes) {
  std::vector<std::string> classes = model.block_class_names();
  classes.insert(classes.end(), more_classes.begin(), more_classes.end());
  return [blocks = module_name_policy(classes), large = LargeOutsideBlocks(model)](const WrapCandidate& candidate) {
    return blocks(candidate) || large(candidate);
  };
}

}  // namespace fsdp::trainer
