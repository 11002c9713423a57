// The operators that SavedOperators names.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace fsdp {

class OperatorSelection {
 public:
  // Errors: see SavedOperators.
  explicit OperatorSelection(const std::vector<std::string>& names);
  bool contains(const c10::OperatorHandle& op) const { return operators_.count(op.operator_name()) > 0; }

 private:
  void add(const std::string& name);

  std::unordered_set<c10::OperatorName> operators_;
};

}  // namespace fsdp
