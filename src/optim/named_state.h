// State and options that come by name, taken one by one: what is missing, left over or misshapen is an error.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>

#include "fsdp/optimizer_state.h"

namespace fsdp {

// `optimizer`: its name, for errors. Must not outlive `leaf` and `state`.
class NamedState {
 public:
  NamedState(std::string optimizer, const at::Tensor& leaf, const LeafState& state);

  at::Tensor take_tensor(const std::string& name);
  at::Tensor take_tensor_if_there(const std::string& name);  // else undefined
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
  // An option that this optimizer has with one value only.
  void take_fixed(const std::string& name, double value);
  void check_all_taken() const;

 private:
  std::string optimizer_;
  std::map<std::string, double> left_;
};

}  // namespace fsdp
