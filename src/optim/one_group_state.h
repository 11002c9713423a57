// What the named states of optimizers with a single parameter group share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fsdp/optimizer_state.h"

namespace fsdp::optim {

class OneGroupState : public OptimizerState {
 public:
  // `optimizer` is the optimizer's name, for errors. `parameters` must outlive this object.
  OneGroupState(std::string optimizer, const std::vector<at::Tensor>& parameters);

  std::vector<std::vector<at::Tensor>> groups() const override { return {parameters_}; }

 protected:
  // Returns the index of a parameter, or nothing if it does not belong to the optimizer.
  std::optional<size_t> position(const at::Tensor& leaf) const;
  // The same, but throws if the parameter does not belong to the optimizer.
  size_t own_position(const at::Tensor& leaf) const;
  // Throws if the optimizer has no such group.
  void check_group(size_t group) const;

 private:
  std::string name_;
  const std::vector<at::Tensor>& parameters_;
  std::unordered_map<const at::TensorImpl*, size_t> positions_;
};

}  // namespace fsdp::optim
