#include "planner/tape/kernel_traffic.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/visit_tensors.h"

namespace fsdp::planner {
namespace {

int64_t bytes_in_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  auto bytes = static_cast<int64_t>(tensor.itemsize());
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) bytes *= tensor.stride(dim) == 0 ? 1 : tensor.size(dim);
  return bytes;
}

int64_t bytes_in_memory(const c10::IValue& value) {
  int64_t bytes = 0;
  base::visit_tensors(value, [&](const at::Tensor& tensor) { bytes += bytes_in_memory(tensor); });
  return bytes;
}

// Operators that write their first argument without reading it.
bool overwrites(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::copy_",         "aten::zero_",      "aten::fill_",  "aten::normal_",        "aten::uniform_",
      "aten::random_",       "aten::bernoulli_", "aten::arange", "aten::_foreach_zero_", "aten::_foreach_copy_",
      "aten::cauchy_",       "aten::geometric_", "aten::eye",    "aten::exponential_",   "aten::log_normal_",
      "aten::_foreach_fill_"};
  return names.count(name) > 0;
}

// Arguments that the schema says are written, but that are only read in training: gradients, unless they are scaled.
bool only_reads(const std::string& name, size_t argument) {
  static const std::set<std::string> names = {"aten::_fused_adamw_", "aten::_fused_adam_", "aten::_fused_sgd_"};
  return argument == 1 && names.count(name) > 0;
}

// The arguments of which an operator touches some elements only, or none but for their shape.
const std::set<size_t>& touched_in_part(const std::string& name) {
  static const std::set<size_t> none;
  static const std::map<std::string, std::set<size_t>> table = {
      {"aten::embedding", {0}},
      {"aten::index_select", {0}},
      {"aten::gather", {0}},
      {"aten::index", {0}},
      {"aten::nll_loss_forward", {0}},
      {"aten::nll_loss2d_forward", {0}},
      {"aten::nll_loss_backward", {1}},
      {"aten::nll_loss2d_backward", {1}},
  };
  const auto found = table.find(name);
  return found == table.end() ? none : found->second;
}

// The arguments of which an operator changes the elements that its last tensor is for.
bool writes_in_part(const std::string& name) {
  static const std::set<std::string> names = {"aten::index_put_", "aten::_index_put_impl_", "aten::index_add_",
                                              "aten::scatter_",   "aten::scatter_add_",     "aten::index_copy_"};
  return names.count(name) > 0;
}

class Traffic {
 public:
  explicit Traffic(const KernelCall& call) : call_(call), name_(call.op.schema().name()) {}

  int64_t bytes() const {
    int64_t bytes = written_;
    for (size_t i = 0; i < call_.arguments.size(); ++i) bytes += of_argument(i);
    return bytes;
  }

 private:
  static int64_t fresh_results(const KernelCall& call) {
    int64_t bytes = 0;
    const auto& returns = call.op.schema().returns();
    for (size_t i = 0; i < call.results.size() && i < returns.size(); ++i) {
      if (!returns[i].alias_info()) bytes += bytes_in_memory(call.results[i]);
    }
    return bytes;
  }

  int64_t of_argument(size_t i) const {
    const c10::Argument& argument = call_.op.schema().arguments()[i];
    const int64_t bytes = bytes_in_memory(call_.arguments[i]);
    if (touched_in_part(name_).count(i) > 0) return std::min(bytes, written_);
    if (!argument.alias_info() || !argument.alias_info()->isWrite() || only_reads(name_, i)) return bytes;
    if (argument.is_out() || (i == 0 && overwrites(name_))) return bytes;
    if (i == 0 && writes_in_part(name_)) return std::min(2 * bytes, 2 * largest_other());
    return 2 * bytes;
  }

  int64_t largest_other() const {
    int64_t largest = 0;
    for (size_t i = 1; i < call_.arguments.size(); ++i) {
      largest = std::max(largest, bytes_in_memory(call_.arguments[i]));
    }
    return largest;
  }

  const KernelCall& call_;
  const std::string& name_;
  int64_t written_ = fresh_results(call_);
};

// Like Traffic, tensor by tensor.
class Accesses {
 public:
  explicit Accesses(const KernelCall& call) : call_(call), name_(call.op.schema().name()) {
    const auto& returns = call.op.schema().returns();
    for (size_t i = 0; i < call.results.size() && i < returns.size(); ++i) {
      if (!returns[i].alias_info()) add(call.results[i], {.writes = true}, false);
    }
    for (const TensorAccess& result : accesses_) written_ += result.bytes;
    for (size_t i = 0; i < call.arguments.size(); ++i)
      add(call.arguments[i], access_of_argument(i), touched_in_part(name_).count(i) > 0);
  }

  std::vector<TensorAccess> take() { return std::move(accesses_); }

 private:
  TensorAccess access_of_argument(size_t i) const {
    const c10::Argument& argument = call_.op.schema().arguments()[i];
    const bool writes = argument.alias_info() && argument.alias_info()->isWrite() && !only_reads(name_, i);
    return {.reads = !writes || !(argument.is_out() || (i == 0 && overwrites(name_))), .writes = writes};
  }

  void add(const c10::IValue& value, TensorAccess access, bool in_part) {
    base::visit_tensors(value, [&](const at::Tensor& tensor) {
      access.bytes = bytes_in_memory(tensor);
      if (in_part) access.bytes = std::min(access.bytes, written_);
      if (access.bytes == 0) return;
      access.address = tensor.const_data_ptr();
      accesses_.push_back(access);
    });
  }

  const KernelCall& call_;
  const std::string& name_;
  int64_t written_ = 0;
  std::vector<TensorAccess> accesses_;
};

// Returns whether one end of the copy is on the host and the other one on the device.
bool copy_crosses(const KernelCall& call) {
  if (call.place != Place::kDevice || call.op.schema().name() != "aten::copy_") return false;
  return call.arguments[0].toTensor().is_cpu() != call.arguments[1].toTensor().is_cpu();
}

}  // namespace

KernelTraffic kernel_traffic(const KernelCall& call) {
  if (copy_crosses(call)) return {.bytes = bytes_in_memory(call.arguments[0].toTensor()), .crosses = true};
  return {.bytes = Traffic(call).bytes(), .crosses = false};
}

std::vector<TensorAccess> tensor_accesses(const KernelCall& call) { return Accesses(call).take(); }

}  // namespace fsdp::planner
