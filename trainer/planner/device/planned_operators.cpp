#include "planner/device/planned_operators.h"

#include <set>
#include <string>

namespace fsdp::planner {
namespace {

bool returns_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

// Whether the CPU's kernel reads no memory, and stays.
bool reads_no_memory(const c10::FunctionSchema& schema) {
  static const std::set<std::string> names = {
      "aten::empty",       "aten::empty_strided", "aten::resize_", "aten::set_",
      "aten::is_set_to",   "aten::is_pinned",     "aten::unfold",  "aten::_has_compatible_shallow_copy_type",
      "aten::is_same_size"};
  return names.count(schema.name()) > 0 || returns_view(schema);
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (!result.type()->isSubtypeOf(*c10::TensorType::get()) &&
        !result.type()->isSubtypeOf(*c10::ListType::ofTensors())) {
      return false;
    }
  }
  return true;
}

// "aten::_foreach_add_" changes all tensors of a list in one kernel of CUDA; other devices take them one by one.
bool changes_lists(const std::string& name) { return name.rfind("aten::_foreach_", 0) == 0 && name.back() == '_'; }

// Whether the operator is one kernel. This includes operators that choose a kernel by the device inside.
bool is_done_as_a_whole(const c10::OperatorHandle& op) {
  static const std::set<std::string> chosen_by_device = {"aten::convolution", "aten::convolution_backward",
                                                         "aten::copy_"};
  const std::string& name = op.schema().name();
  if (name.rfind("aten::", 0) != 0) return false;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) || changes_lists(name) ||
         (chosen_by_device.count(name) && op.schema().overload_name().empty());
}

}  // namespace

bool is_planned(const c10::OperatorHandle& op) {
  return is_done_as_a_whole(op) && !reads_no_memory(op.schema()) && returns_tensors(op.schema());
}

}  // namespace fsdp::planner
