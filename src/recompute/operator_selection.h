// The operators that SavedOperators names.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace fsdp::recompute {

class OperatorSelection {
 public:
  // Errors: see SavedOperators.
  explicit OperatorSelection(const std::vector<std::string>& names);
  bool contains(const c10::OperatorHandle& op) const { return operators_.count(op.operator_name()) > 0; }
  // Looks up an operator by name; means its overload without a name.
  bool contains(const char* name) const { return operators_.count({name, ""}) > 0; }
  // Whether it contains an operator whose name begins with `prefix`.
  bool contains_any_of(const char* prefix) const;

 private:
  void add(const std::string& name);

  std::unordered_set<c10::OperatorName> operators_;
};

}  // namespace fsdp::recompute
