// Takes state and options by name, one at a time. Missing, left-over or misshapen entries are errors.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>

#include "fsdp/optimizer_state.h"

namespace fsdp::optim {

// `optimizer` is the optimizer's name, for errors. The object must not outlive `leaf` and `state`.
class NamedState {
 public:
  NamedState(std::string optimizer, const at::Tensor& leaf, const LeafState& state);

  at::Tensor take_tensor(const std::string& name);
  at::Tensor take_tensor_if_there(const std::string& name);  // undefined if absent
  double take_scalar(const std::string& name);
  void check_all_taken() const;

 private:
  std::string optimizer_;
  const at::Tensor& leaf_;
  const LeafState& state_;
  std::set<std::string> taken_;
};

class NamedOptions {
 public:
  NamedOptions(std::string optimizer, const std::map<std::string, double>& options);

  double take(const std::string& name);
  // Takes an option for which this optimizer supports only the value `value`.
  void take_fixed(const std::string& name, double value);
  void check_all_taken() const;

 private:
  std::string optimizer_;
  std::map<std::string, double> left_;
};

}  // namespace fsdp::optim
