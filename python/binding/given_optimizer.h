// An optimizer's state that Python hands over for a checkpoint, and takes back from one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/optimizer_state.h"

namespace fsdp::python {

// Python has the optimizer; this object has what it was given of it. Loading replaces what is here, and Python then
// puts it into the optimizer. Options are accepted if they have the names of those that were given.
class GivenOptimizer final : public OptimizerState {
 public:
  void add_group(std::vector<at::Tensor> leaves, std::map<std::string, double> options);
  void give(const at::Tensor& leaf, LeafState state);

  std::vector<std::vector<at::Tensor>> groups() const override;
  std::optional<LeafState> leaf(const at::Tensor& leaf) const override;
  void set_leaf(const at::Tensor& leaf, const std::optional<LeafState>& state) override;
  std::map<std::string, double> options(size_t group) const override;
  void set_options(size_t group, const std::map<std::string, double>& options) override;
  void check_options(size_t group, const std::map<std::string, double>& options) const override;

 private:
  struct Group {
    std::vector<at::Tensor> leaves;
    std::map<std::string, double> options;
  };
  const Group& group_at(size_t group) const;

  std::vector<Group> groups_;
  std::map<const at::TensorImpl*, LeafState> states_;
};

}  // namespace fsdp::python
