#include "planner/device/planned_kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/map_tensors.h"
#include "base/visit_tensors.h"
#include "planner/device/host_temporaries.h"
#include "planner/device/kept_library.h"
#include "planner/device/kernel_temporaries.h"
#include "planner/device/matmul_workspaces.h"
#include "planner/device/planned_device.h"
#include "planner/device/planned_memory.h"
#include "planner/device/planned_operators.h"
#include "planner/device/result_shapes.h"

namespace fsdp::planner {
namespace {

using torch::jit::Stack;

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

bool is_out_argument(const c10::Argument& argument) { return is_written(argument) && argument.is_out(); }

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const Stack& stack) : op_(op) {
    const size_t count = op.schema().arguments().size();
    arguments_.assign(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    for (size_t i = 0; i < count; ++i) find_place(i);
  }

  Stack run() const {
    note_last_operator(op_.schema().name().c_str());
    Stack results = returns_arguments() ? written_arguments() : fresh_results();
    const bool waits = waits_for_copy();
    const std::vector<c10::DataPtr> temporaries = take_temporaries();
    PlannedMemory::get().report([&](DeviceLog& log) {
      log.kernel({op_, arguments_, results, place_, place_ == Place::kDevice ? current_stream_number() : -1});
      if (waits) log.host_waited_for_stream(current_stream_number());
    });
    return results;
  }

 private:
  const c10::FunctionSchema& schema() const { return op_.schema(); }

  // Tensors on the host may be arguments of a kernel on the device: numbers and indices, and the other end of a copy.
  void find_place(size_t i) {
    if (arguments_[i].isDevice() && arguments_[i].toDevice().type() == c10::kPrivateUse1) place_ = Place::kDevice;
    base::visit_tensors(arguments_[i], [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.device().type() == c10::kPrivateUse1) place_ = Place::kDevice;
    });
  }

  // A copy between host and device makes the host wait unless the caller allows it not to. Memory that is not pinned is
  // read before the call returns in any case.
  bool waits_for_copy() const {
    if (place_ != Place::kDevice || schema().name() != "aten::copy_") return false;
    const at::Tensor &to = arguments_[0].toTensor(), &from = arguments_[1].toTensor();
    if (!to.is_cpu() && !from.is_cpu()) return false;
    const bool non_blocking = arguments_[2].toBool();
    return !non_blocking || (from.is_cpu() && !from.is_pinned());
  }

  // Returns what the kernel takes for itself until it has run.
  std::vector<c10::DataPtr> take_temporaries() const {
    std::vector<c10::DataPtr> temporaries;
    if (place_ != Place::kDevice) return take_on_host();
    if (runs_on_cublas(schema().name())) MatmulWorkspaces::get().prepare();
    const PlannedMemory::Maker maker(schema().name().c_str());
    for (const int64_t nbytes : kernel_temporaries(schema().name(), arguments_)) {
      temporaries.push_back(planned_device_allocator().allocate(static_cast<size_t>(nbytes)));
    }
    return temporaries;
  }

  std::vector<c10::DataPtr> take_on_host() const {
    std::vector<c10::DataPtr> temporaries;
    const int64_t nbytes = host_temporaries(schema().name(), arguments_);
    if (nbytes <= 0) return temporaries;
    const PlannedMemory::Maker maker(schema().name().c_str());
    temporaries.push_back(planned_host_allocator().allocate(static_cast<size_t>(nbytes)));
    return temporaries;
  }

  bool returns_arguments() const {
    for (const c10::Argument& result : schema().returns()) {
      if (!is_written(result)) return false;
    }
    for (const c10::Argument& argument : schema().arguments()) {
      if (is_out_argument(argument)) return false;
    }
    return true;
  }

  // Returns the argument that the result aliases, or null if the result is a new tensor.
  const c10::IValue* written_as(const c10::Argument& result) const {
    if (!result.alias_info()) return nullptr;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto* info = schema().arguments()[i].alias_info();
      if (info && info->beforeSets() == result.alias_info()->beforeSets()) return &arguments_[i];
    }
    TORCH_CHECK(false, schema().name(), ": a result that is written is no argument");
  }

  Stack written_arguments() const {
    Stack results;
    for (const c10::Argument& result : schema().returns()) results.push_back(*written_as(result));
    return results;
  }

  Stack fresh_results() const {
    Stack meta, shapes;
    {
      const PlannedMemory::Quiet quiet;
      shapes = result_shapes(op_, arguments_, meta);
    }
    const PlannedMemory::Maker maker(schema().name().c_str());
    resize_outputs(meta);
    Stack results;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const c10::IValue* argument = written_as(schema().returns()[i]);
      results.push_back(argument ? *argument : base::map_tensors(shapes[i], [&](const at::Tensor& shape) {
        return allocate_like(shape);
      }));
    }
    return results;
  }

  // Gives outputs that the caller passed the geometry that the operator gives them.
  void resize_outputs(const Stack& meta) const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(schema().arguments()[i]) || !arguments_[i].isTensor() || !arguments_[i].toTensor().defined()) {
        continue;
      }
      const at::Tensor& own = arguments_[i].toTensor();
      const at::Tensor& wanted = meta[i].toTensor();
      if (own.sizes() == wanted.sizes()) continue;
      own.resize_(wanted.sizes());
      own.unsafeGetTensorImpl()->set_sizes_and_strides(wanted.sizes(), wanted.strides());
    }
  }

  at::Tensor allocate_like(const at::Tensor& shape) const {
    TORCH_CHECK(shape.layout() == at::kStrided, schema().name(), ": a plan has strided tensors only");
    const bool on_device = place_ == Place::kDevice;
    return at::detail::empty_strided_generic(
        shape.sizes(), shape.strides(), on_device ? &planned_device_allocator() : &planned_host_allocator(),
        c10::DispatchKeySet(on_device ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CPU), shape.scalar_type());
  }

  c10::OperatorHandle op_;
  Stack arguments_;
  Place place_ = Place::kHost;
};

void compute_nothing(const c10::OperatorHandle& op, Stack* stack) {
  Stack results = Call(op, *stack).run();
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

at::Scalar read_number(const at::Tensor& self) {
  if (!self.is_cpu()) {
    PlannedMemory::get().report([&](DeviceLog& log) { log.host_waited_for_stream(current_stream_number()); });
  }
  return self.scalar_type() == at::kBool ? at::Scalar(true) : at::Scalar(1);
}

bool are_equal(const at::Tensor&, const at::Tensor&) { return true; }

}  // namespace

// A fallback is not enough: LibTorch prefers the composite implementation of an operator to a fallback, and would
// decompose operators that devices run as a whole.
void register_planned_kernels() {
  torch::Library& device = kept_library("aten", c10::DispatchKey::PrivateUse1);
  torch::Library& host = kept_library("aten", c10::DispatchKey::CPU);
  for (torch::Library* kernels : {&device, &host}) {
    kernels->impl("_local_scalar_dense", &read_number);
    kernels->impl("equal", &are_equal);
  }
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || !is_planned(*op)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      device.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&compute_nothing>());
    }
    host.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&compute_nothing>());
  }
  kept_library("_", c10::DispatchKey::PrivateUse1)
      .fallback(torch::CppFunction::makeFromBoxedFunction<&compute_nothing>());
}

}  // namespace fsdp::planner
