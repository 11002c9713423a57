// Loads an optimizer's state from any source.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/state_dict.h"
#include "state/held_leaves.h"
#include "state/load_together.h"
#include "state/name_map.h"
#include "state/saved_optimizer.h"

namespace fsdp::state {

class OptimizerLoader final : public Loader {
 public:
  // `saved` must outlive this object. `with_options`: as LoadOptions::optimizer_options.
  // `where`: this rank.
  OptimizerLoader(std::vector<HeldPart> of_model, std::string where, OptimizerState& optimizer,
                  const SavedOptimizer& saved, const Rename& rename, bool with_options = true);
  OptimizerLoader(const ShardedModule& model, OptimizerState& optimizer, const SavedOptimizer& saved,
                  const Rename& rename, bool with_options = true);

  LoadReport match() override;
  void load(const LoadReport& agreed) override;

 private:
  LoadReport match(const HeldLeaf& leaf);
  void match(const HeldPart& part, const Numbers** of_leaf, LoadReport& report);
  // Returns why the optimizer does not accept the state saved for a leaf, or an empty string if it does.
  std::string refusal(const HeldLeaf& leaf) const;
  std::optional<Mismatch> mismatch(const HeldPart& part, const std::string& given) const;
  // Returns the saved entries for a parameter under its names here. If any of them have state, those without state are
  // omitted.
  std::vector<GivenName> find(const HeldPart& part);
  // Returns how the state under a further name of a shared parameter differs from the state under its first name.
  std::optional<Mismatch> difference(const HeldPart& part, const GivenName& first, const GivenName& other) const;
  void match_options(size_t group, LoadReport& report);
  // Whether the optimizer can have these options. If not, adds the reason to the report.
  bool takes(size_t group, const Numbers& options, LoadReport& report) const;
  std::optional<LeafState> read(const HeldLeaf& leaf, const std::set<std::string>& loaded) const;
  void read_tensors(const HeldLeaf& leaf, const HeldPart& part, const std::optional<LeafState>& before,
                    LeafState& state) const;

  OptimizerState& optimizer_;
  const SavedOptimizer& saved_;
  std::vector<std::vector<HeldLeaf>> groups_;
  const std::string where_;  // this rank
  bool with_options_;
  NameMap names_;
  std::map<std::string, std::string> given_;  // for parameters that fit: by FQN, the saved name
  std::map<size_t, const Numbers*> options_;  // by the optimizer's group
};

}  // namespace fsdp::state
