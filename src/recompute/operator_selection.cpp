#include "recompute/operator_selection.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "fsdp/activation_checkpoint.h"
#include "torch_seams/operator_interception.h"

namespace fsdp::recompute {
namespace {

constexpr const char* kUnknown = "there is no operator of this name";

// Returns why the results of an operator cannot be kept; empty if they can.
std::string obstacle(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return "it decomposes into other operators before autograd: name those";
  }
  if (op.schema().is_mutable()) return "it writes to its arguments";
  for (const c10::Argument& result : op.schema().returns()) {
    if (result.alias_info()) return "it returns a view";
  }
  return op.schema().returns().empty() ? "it returns nothing" : "";
}

bool is_named(const c10::OperatorName& op, const std::string& name) {
  return op.name == name || (!op.overload_name.empty() && op.name + "." + op.overload_name == name);
}

}  // namespace

OperatorSelection::OperatorSelection(const std::vector<std::string>& names) {
  seams::require_interception();
  for (const std::string& name : names) add(name);
}

void OperatorSelection::add(const std::string& name) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::string reason = kUnknown;
  bool found = false;
  for (const c10::OperatorName& candidate : dispatcher.getAllOpNames()) {
    const auto op = is_named(candidate, name) ? dispatcher.findSchema(candidate) : std::nullopt;
    if (!op) continue;
    const std::string why_not = obstacle(*op);
    if (why_not.empty()) {
      operators_.insert(candidate);
      found = true;
    } else if (!op->schema().is_mutable() || reason == kUnknown) {  // of linear and linear.out, report linear's reason
      reason = why_not;
    }
  }
  TORCH_CHECK_VALUE(found, "fsdp: the results of operator \"", name, "\" cannot be kept: ", reason);
}

bool OperatorSelection::contains_any_of(const char* prefix) const {
  return std::any_of(operators_.begin(), operators_.end(),
                     [&](const c10::OperatorName& op) { return op.name.rfind(prefix, 0) == 0; });
}

}  // namespace fsdp::recompute

namespace fsdp {

SavedOperators::SavedOperators(const std::vector<std::string>& names)
    : selection_(names.empty() ? nullptr : std::make_shared<const recompute::OperatorSelection>(names)) {}

SavedOperators::SavedOperators(std::initializer_list<const char*> names)
    : SavedOperators(std::vector<std::string>(names.begin(), names.end())) {}

}  // namespace fsdp
