#include "support/devices/simulated_fallback.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/map_tensors.h"
#include "base/visit_tensors.h"
#include "support/devices/operator_rehearsal.h"
#include "support/devices/simulated_memory.h"
#include "torch_seams/clean_dispatch.h"

namespace fsdp::testing {
namespace {

using torch::jit::Stack;

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

// One call of an operator on the device.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const Stack& stack) : op_(op) {
    const size_t count = op.schema().arguments().size();
    arguments_.assign(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    for (size_t i = 0; i < count; ++i) check_devices(i);
  }

  // Returns the results.
  Stack run() const {
    std::optional<Rehearsal> rehearsal;
    {
      const seams::CleanDispatchGuard clean;
      rehearsal = rehearse(op_, arguments_);
    }
    return rehearsal ? enqueue(*rehearsal) : run_at_once();
  }

 private:
  const c10::FunctionSchema& schema() const { return op_.schema(); }

  void check_devices(size_t i) {
    const bool is_index = schema().arguments()[i].name() == "indices";
    base::visit_tensors(arguments_[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (tensor.is_cpu()) {
        TORCH_CHECK(!is_written(schema().arguments()[i]) && (tensor.dim() == 0 || is_index), schema().name(),
                    ": expected all tensors to be on the same device, but '", schema().arguments()[i].name(),
                    "' is on the CPU");
        return;
      }
      TORCH_CHECK(tensor.device().type() == c10::kPrivateUse1 && (!device_ || *device_ == tensor.device()),
                  schema().name(), ": expected all tensors to be on the same device, but found ", tensor.device(),
                  device_ ? " and " + device_->str() : "");
      device_ = tensor.device();
    });
    if (arguments_[i].isDevice() && !device_) device_ = arguments_[i].toDevice();
  }
  c10::Device device() const { return with_current_index(device_.value_or(c10::Device(c10::kPrivateUse1))); }
  SimulatedStream& stream() const { return current_simulated_stream(device()); }

  // Returns the arguments for the host at the time the work runs: views of device memory, and copies of the present
  // contents of host tensors.
  Stack on_host() const {
    HostViews views;
    auto view = [&](const at::Tensor& tensor) {
      if (!tensor.is_cpu()) return views.of(tensor);
      const seams::CleanDispatchGuard clean;
      at::Tensor copy = tensor.clone();
      copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
      return copy;
    };
    Stack host;
    for (const c10::IValue& argument : arguments_)
      host.push_back(with_device(base::map_tensors(argument, view), c10::kCPU));
    return host;
  }

  // Returns the argument that the result aliases, or null if the result is a new tensor.
  const c10::IValue* written_as(const c10::Argument& result) const {
    TORCH_CHECK(!result.alias_info() || result.alias_info()->isWrite(), schema().name(),
                ": the simulated device has no kernel for this view operator");
    if (!result.alias_info()) return nullptr;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto* info = schema().arguments()[i].alias_info();
      if (info && info->beforeSets() == result.alias_info()->beforeSets()) return &arguments_[i];
    }
    TORCH_CHECK(false, schema().name(), ": a result that is written is no argument");
  }

  // Gives outputs that the caller passed the geometry that the operator gives them.
  void resize_outputs(const Rehearsal& rehearsal) const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(schema().arguments()[i]) || !arguments_[i].isTensor() || !arguments_[i].toTensor().defined()) {
        continue;
      }
      const at::Tensor& own = arguments_[i].toTensor();
      const at::Tensor& wanted = rehearsal.arguments[i].toTensor();
      if (own.sizes() == wanted.sizes()) continue;
      own.resize_(wanted.sizes());
      own.unsafeGetTensorImpl()->set_sizes_and_strides(wanted.sizes(), wanted.strides());
    }
  }

  at::Tensor allocate_like(const at::Tensor& result) const {
    TORCH_CHECK(result.layout() == at::kStrided, schema().name(), ": the simulated device has strided tensors only");
    return result.is_non_overlapping_and_dense()
               ? empty_simulated(result.sizes(), result.strides(), result.scalar_type(), device())
               : empty_simulated(result.sizes(), std::nullopt, result.scalar_type(), device());
  }

  // Returns the results for the caller instead of `results`, which were computed elsewhere.
  Stack on_device(const Stack& results, std::vector<at::Tensor>& allocated) const {
    Stack own;
    for (size_t i = 0; i < results.size(); ++i) {
      const c10::IValue* argument = written_as(schema().returns()[i]);
      own.push_back(argument ? *argument : base::map_tensors(results[i], [&](const at::Tensor& result) {
        allocated.push_back(allocate_like(result));
        return allocated.back();
      }));
    }
    return own;
  }

  // Returns the tensors of `results` that are not arguments.
  static std::vector<at::Tensor> fresh(const c10::FunctionSchema& schema, const Stack& results) {
    std::vector<at::Tensor> found;
    for (size_t i = 0; i < results.size(); ++i) {
      if (schema.returns()[i].alias_info()) continue;
      base::visit_tensors(results[i], [&](const at::Tensor& result) {
        if (result.defined()) found.push_back(result);
      });
    }
    return found;
  }

  static void copy_results(const c10::FunctionSchema& schema, const Stack& results, const std::vector<at::Tensor>& to) {
    const std::vector<at::Tensor> from = fresh(schema, results);
    TORCH_CHECK(from.size() == to.size(), schema.name(), ": which results are defined depends on data");
    for (size_t i = 0; i < from.size(); ++i) {
      TORCH_CHECK(from[i].sizes() == to[i].sizes() && from[i].scalar_type() == to[i].scalar_type(), schema.name(),
                  ": result ", i, " is ", from[i].sizes(), " but was expected to be ", to[i].sizes());
      to[i].copy_(from[i]);
    }
  }

  Lateness lateness() const {
    static const std::set<std::string> always = {"aten::fill_", "aten::zero_"};
    return always.count(schema().name()) ? Lateness::kAlways : Lateness::kNowAndThen;
  }

  Stack enqueue(const Rehearsal& rehearsal) const {
    resize_outputs(rehearsal);
    std::vector<at::Tensor> outputs;
    Stack results = on_device(rehearsal.results, outputs);
    HostViews views;
    for (at::Tensor& output : outputs) output = views.of(output);
    stream().enqueue(
        [op = op_, host = on_host(), outputs = std::move(outputs)]() mutable {
          op.callBoxed(host);
          copy_results(op.schema(), host, outputs);
        },
        lateness());
    return results;
  }

  Stack run_at_once() const {
    stream().synchronize();
    Stack host = on_host();
    {
      const seams::CleanDispatchGuard clean;
      op_.callBoxed(host);
    }
    std::vector<at::Tensor> outputs;
    Stack results = on_device(host, outputs);
    const seams::CleanDispatchGuard clean;
    HostViews views;
    for (at::Tensor& output : outputs) output = views.of(output);
    copy_results(schema(), host, outputs);
    return results;
  }

  c10::OperatorHandle op_;
  Stack arguments_;
  std::optional<c10::Device> device_;
};

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  Stack results = Call(op, *stack).run();
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

// Whether the operator runs as a whole. This includes composite operators that choose their parts by the device.
bool is_done_as_a_whole(const c10::OperatorHandle& op) {
  static const std::set<std::string> chosen_by_device = {"aten::convolution", "aten::convolution_backward"};
  const std::string& name = op.schema().name();
  if (name.rfind("aten::", 0) != 0) return false;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
         (chosen_by_device.count(name) && op.schema().overload_name().empty());
}

}  // namespace

// A single fallback is not enough: LibTorch prefers the composite implementation of an operator to a fallback, and
// would decompose operators that the CPU runs as a whole.
void register_simulated_fallback() {
  static torch::Library& whole =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static torch::Library& all =
      *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || !is_done_as_a_whole(*op) || returns_view(op->schema()) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    whole.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace fsdp::testing
