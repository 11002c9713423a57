// What optimizers keep for split tensors, from a checkpoint.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "fsdp/split_tensor.h"
#include "state/load_together.h"
#include "state/name_map.h"
#include "state/saved_optimizer.h"

namespace fsdp {

// In reports a state is NAME/STATE.
class SplitStateLoader final : public Loader {
 public:
  // Of `split`, states are what is to be loaded. `saved` is of split tensors alone (take_saved), and must outlive it.
  SplitStateLoader(const std::vector<SplitTensor>& split, const SavedOptimizer& saved, const Rename& rename);

  LoadReport match() override;
  void load(const LoadReport& agreed) override;

 private:
  void match(const SplitTensor& state, LoadReport& report);
  void add_unexpected(LoadReport& report) const;

  std::vector<SplitTensor> states_;
  const SavedOptimizer& saved_;
  Rename rename_;
  NameMap names_;
  std::map<std::string, std::string> given_;  // of what fits: where to read it
};

// Takes what is saved for parameters that have these names here out of `saved`, and returns it.
SavedOptimizer take_saved(SavedOptimizer& saved, const std::set<std::string>& names, const Rename& rename);

}  // namespace fsdp
