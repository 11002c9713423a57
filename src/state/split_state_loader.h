// Loads the optimizers' state of split tensors from a checkpoint.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "fsdp/split_tensor.h"
#include "state/load_together.h"
#include "state/name_map.h"
#include "state/saved_optimizer.h"

namespace fsdp::state {

// Reports name a state NAME/STATE.
class SplitStateLoader final : public Loader {
 public:
  // Loads the entries of `split` that are optimizer state. `saved` contains only state of split tensors (take_saved),
  // and must outlive this object.
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
  std::map<std::string, std::string> given_;  // for states that fit: by full name, the name to read
};

// Removes from `saved` the state of the parameters that have these names here, and returns it.
SavedOptimizer take_saved(SavedOptimizer& saved, const std::set<std::string>& names, const Rename& rename);

}  // namespace fsdp::state
