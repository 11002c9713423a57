#include "deferred/recorder.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "base/map_tensors.h"
#include "base/visit_tensors.h"
#include "deferred/draw_sequence.h"
#include "deferred/operator_call.h"
#include "deferred/operator_traits.h"
#include "deferred/replay.h"
#include "torch_seams/clean_dispatch.h"

namespace fsdp::deferred {
namespace {

constexpr size_t kResidentBytes = 4096;       // constants up to this size are resident from the start
constexpr size_t kCopiedBytes = 1024 * 1024;  // ordinary arguments up to this size are copied

thread_local int depth = 0;

uint64_t next_number() {
  static std::atomic<uint64_t> count = 0;
  return ++count;
}

bool makes_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) && !result.alias_info();
  });
}

bool same_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

at::Generator generator_of(const OperatorCall& call) {
  if (auto position = call.given("generator")) return call.argument(*position).toGenerator();
  return at::globalContext().defaultGenerator(call.device());
}

// Returns a tensor that shares its storage with `tensor` and is not deferred.
at::Tensor ordinary(const TensorArgument& argument) {
  return argument.deferred ? tensor_over(argument.deferred->memory, argument.tensor) : argument.tensor;
}

// Whether the tensor's memory has no known owner, so that it may be freed before replay.
bool is_borrowed_memory(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_context() == nullptr;
}

bool must_copy(const at::Tensor& tensor) { return tensor.nbytes() <= kCopiedBytes || is_borrowed_memory(tensor); }

// The recording of one operator.
class Recording {
 public:
  Recording(const c10::OperatorHandle& op, const OperatorCall& call, const OperatorTraits& traits)
      : op_(op), call_(call), traits_(traits), device_(call.device()) {}

  // Finds the shapes of the results on the meta device. Returns false if they cannot be known without values.
  bool find_shapes() {
    seams::CleanDispatchGuard clean;
    for (size_t i = 0; i < call_.num_arguments(); ++i) shapes_.push_back(meta_argument(i));
    keep_arguments();
    try {
      op_.callBoxed(shapes_);
    } catch (const c10::Error&) {
      return false;
    }
    for (const c10::IValue& value : shapes_) base::visit_tensors(value, [&](const at::Tensor& shape) { place(shape); });
    return !views_ordinary_;
  }

  // Whether all results are small enough to be resident from the start.
  bool is_small() const {
    return std::all_of(fresh_.begin(), fresh_.end(),
                       [](const at::Tensor& shape) { return shape.storage().nbytes() <= kResidentBytes; });
  }

  // Replaces the arguments on the stack by the results.
  void record(torch::jit::Stack& stack) {
    OperatorPtr op = !fresh_.empty() || call_.writes_deferred() ? describe() : nullptr;
    take_over_shapes();
    if (op) {
      add_inputs(*op);
      op->number = next_number();
      add_draw(op);
      note_writer(op);
    }
    torch::jit::drop(stack, call_.num_arguments());
    for (const c10::IValue& value : shapes_) {
      stack.push_back(base::map_tensors(value, [&](const at::Tensor& shape) { return result(shape, op); }));
    }
  }

 private:
  struct Twin {
    const TensorArgument* argument;
    at::Tensor shape;
  };

  c10::IValue meta_argument(size_t position) {
    const c10::Argument& argument = op_.schema().arguments()[position];
    const c10::IValue& value = call_.argument(position);
    if (argument.name() == "device") return c10::IValue(c10::Device(c10::kMeta));
    if (argument.name() == "pin_memory" || value.isGenerator()) return {};
    return base::map_tensors(value, [&](const at::Tensor& tensor) { return meta_twin(tensor); });
  }

  const TensorArgument& argument_with(const at::Tensor& tensor) const {
    return *std::find_if(call_.tensors().begin(), call_.tensors().end(),
                         [&](const TensorArgument& one) { return one.tensor.is_same(tensor); });
  }

  at::Tensor meta_twin(const at::Tensor& tensor) {
    const TensorArgument& argument = argument_with(tensor);
    if (!argument.deferred && is_host_scalar(tensor)) return tensor;
    for (const Twin& twin : twins_) {
      if (twin.argument == &argument) return twin.shape;
    }
    at::Tensor shape = argument.deferred ? twin_of(tensor)
                                         : at::empty_strided(tensor.sizes(), tensor.strides(),
                                                             at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
    twins_.push_back({&argument, shape});
    return shape;
  }

  // Keeps the arguments as they are before the operator changes shapes.
  void keep_arguments() {
    for (size_t i = 0; i < call_.num_arguments(); ++i) {
      arguments_.push_back(base::map_tensors(call_.argument(i), [&](const at::Tensor& tensor) {
        const TensorArgument& argument = argument_with(tensor);
        bool recorded = argument.deferred && (!argument.deferred->resident || argument.written);
        return recorded ? twin_of(tensor) : ordinary(argument);
      }));
    }
  }

  const Twin* twin_with(const at::Tensor& shape) const {
    for (const Twin& twin : twins_) {
      if (twin.shape.is_same(shape)) return &twin;
    }
    return nullptr;
  }
  const Twin* alias_of(const at::Tensor& shape) const {
    for (const Twin& twin : twins_) {
      if (same_storage(twin.shape, shape)) return &twin;
    }
    return nullptr;
  }
  // An operator that moves tensors to another device does not return its arguments.
  bool moves(const Twin& twin) const { return !twin.argument->written && twin.argument->tensor.device() != device_; }

  void place(const at::Tensor& shape) {
    if (!shape.defined()) return;
    const Twin* twin = alias_of(shape);
    bool is_fresh = !twin || moves(*twin);
    views_ordinary_ |= twin && !twin->argument->deferred && !twin->shape.is_same(shape);
    if (is_fresh && shape.is_meta()) {
      fresh_.push_back(twin ? at::empty_strided(shape.sizes(), shape.strides(), shape.options()) : shape);
    }
    fresh_of_.push_back(is_fresh && shape.is_meta() ? static_cast<int64_t>(fresh_.size()) - 1 : -1);
  }

  OperatorPtr describe() {
    auto op = std::make_shared<RecordedOperator>(op_);
    op->fills = traits_.fills;
    op->arguments = std::move(arguments_);
    fix_defaults(*op);
    for (size_t position = 0; position < fresh_of_.size(); ++position) {
      if (fresh_of_[position] >= 0) op->outputs.push_back({position, {}});
    }
    return op;
  }

  // Stores a dtype that was left to its default, because the global default may change before replay.
  void fix_defaults(RecordedOperator& op) const {
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() == "dtype" && op.arguments[i].isNone() && call_.tensors().empty() && !fresh_.empty()) {
        op.arguments[i] = fresh_.front().scalar_type();
      }
    }
  }

  void add_inputs(RecordedOperator& op) {
    for (c10::IValue& value : op.arguments) {
      value = base::map_tensors(value, [&](const at::Tensor& tensor) { return own_or_borrow(op, tensor); });
    }
    for (const TensorArgument& argument : call_.tensors()) {
      if (argument.deferred && (argument.written || !argument.deferred->resident)) add_input(op, argument);
    }
  }

  at::Tensor own_or_borrow(RecordedOperator& op, const at::Tensor& tensor) const {
    if (tensor.is_meta()) return tensor;
    if (must_copy(tensor)) {
      seams::CleanDispatchGuard clean;
      at::Tensor copy = tensor.clone();
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
      return copy;
    }
    if (!tensor.is_inference()) op.borrowed.emplace_back(tensor, tensor._version());
    return tensor;
  }

  void add_input(RecordedOperator& op, const TensorArgument& argument) {
    bool covers = argument.written && traits_.fills && argument.tensor.is_non_overlapping_and_dense() &&
                  argument.tensor.nbytes() == argument.tensor.storage().nbytes();
    bool read = !covers && !traits_.only_shapes;
    for (RecordedOperator::Input& known : op.inputs) {
      if (known.twin.unsafeGetStorageImpl() == argument.deferred->twin.unsafeGetStorageImpl()) {
        known.read |= read;
        known.written |= argument.written;
        return;
      }
    }
    if (argument.deferred->resident && read) make_recorded(argument.tensor, constant(*argument.deferred));
    op.inputs.push_back(
        {argument.deferred->twin, argument.deferred->writer, argument.deferred->device, read, argument.written});
  }

  // Returns an operator that produces the current contents of a resident storage.
  static OperatorPtr constant(const DeferredStorage& storage) {
    seams::CleanDispatchGuard clean;
    auto bytes = [&](const c10::Storage& of) {
      at::Tensor shape = at::empty({static_cast<int64_t>(of.nbytes())}, at::TensorOptions(at::kByte).device(at::kMeta));
      return tensor_over(of, shape);
    };
    auto op = std::make_shared<RecordedOperator>(c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", ""));
    op->number = next_number();
    op->arguments = {bytes(storage.memory).clone(), c10::IValue()};
    op->outputs.push_back({0, bytes(storage.twin)});
    return op;
  }

  void add_draw(const OperatorPtr& op) {
    if (traits_.draws) {
      op->draws = DrawSequence::current(generator_of(call_));
      op->draw = op->draws->add(op);
    }
  }

  void note_writer(const OperatorPtr& op) {
    for (const TensorArgument& argument : call_.tensors()) {
      if (argument.deferred && argument.written) make_recorded(argument.tensor, op);
    }
  }

  // Copies changed shapes to the written tensors: resize_, t_ and similar operators change the tensor on which they are
  // called.
  void take_over_shapes() {
    for (const Twin& twin : twins_) {
      if (twin.argument->deferred && twin.argument->written) {
        const at::Tensor& tensor = twin.argument->tensor;
        tensor.storage().unsafeGetStorageImpl()->set_nbytes(twin.shape.storage().nbytes());
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(twin.shape.sizes(), twin.shape.strides(),
                                                            twin.shape.storage_offset());
      }
    }
  }

  at::Tensor result(const at::Tensor& shape, const OperatorPtr& op) {
    int64_t fresh = fresh_of_.at(next_result_++);
    if (fresh >= 0) {
      at::Tensor tensor = make_deferred(fresh_[static_cast<size_t>(fresh)], device_);
      op->outputs[next_output_++].shape = twin_of(tensor);
      make_recorded(tensor, op);
      return tensor;
    }
    if (const Twin* twin = twin_with(shape)) return twin->argument->tensor;
    const Twin* twin = alias_of(shape);
    return twin ? make_view(twin->argument->tensor, shape) : shape;
  }

  const c10::OperatorHandle& op_;
  const OperatorCall& call_;
  OperatorTraits traits_;
  c10::Device device_;
  std::vector<Twin> twins_;
  torch::jit::Stack shapes_;     // arguments on the meta device, later the results
  torch::jit::Stack arguments_;  // as they will be recorded
  std::vector<at::Tensor> fresh_;
  std::vector<int64_t> fresh_of_;  // for each defined tensor in the results: its index in fresh_, or -1
  bool views_ordinary_ = false;
  size_t next_result_ = 0;
  size_t next_output_ = 0;
};

// Runs an operator on tensors that have memory. Its results, which are small, become resident deferred tensors.
void run_small(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  {
    seams::CleanDispatchGuard clean;
    op.callBoxed(stack);
  }
  size_t results = op.schema().returns().size();
  for (size_t i = stack.size() - results; i < stack.size(); ++i) {
    stack[i] = base::map_tensors(stack[i], [](const at::Tensor& tensor) {
      if (find(tensor) || !tensor.has_storage()) return tensor;
      at::Tensor deferred = make_deferred(tensor, tensor.device());
      make_resident(deferred, tensor.storage());
      return deferred;
    });
  }
}

bool can_be_deferred(const OperatorCall& call, const c10::OperatorHandle& op, const OperatorTraits& traits) {
  auto layout = call.given("layout");
  bool strided = !layout || !call.argument(*layout).isInt() ||
                 call.argument(*layout).toInt() == static_cast<int64_t>(c10::Layout::Strided);
  bool from_nothing = call.tensors().empty() || traits.only_shapes;
  return from_nothing && strided && call.device() != c10::kMeta && makes_tensors(op.schema());
}

bool has_deferred(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool found = false;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    base::visit_tensors(stack[i], [&](const at::Tensor& tensor) { found |= find(tensor) != nullptr; });
  }
  return found;
}

// Prepares an operator that must run now: the tensors that it reads get memory, and earlier draws are run if it draws
// itself.
void run_after_all_before(const OperatorCall& call, const OperatorTraits& traits) {
  make_resident(call.recorded());
  if (traits.draws) DrawSequence::current(generator_of(call))->catch_up();
}

}  // namespace

bool is_recording() { return depth > 0; }
int recording_depth() { return depth; }
void set_recording_depth(int value) { depth = value; }

bool intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (!is_recording() && !has_deferred(op, stack)) return false;
  OperatorCall call(op, stack);
  OperatorTraits traits = traits_of(op);
  if (traits.of_the_object) return false;
  if (call.any_sharded()) {
    make_resident(call.recorded());
    return false;
  }
  if (!call.any_deferred() && !can_be_deferred(call, op, traits)) {
    run_after_all_before(call, traits);
    return false;
  }
  bool needs_values = call.writes_ordinary() || (!is_recording() && call.reads_ordinary() && !call.writes_deferred());
  if (needs_values) {
    make_resident(call.recorded());
    return false;
  }
  bool all_known = !call.any_recorded() && !traits.draws;
  if (all_known && !is_recording()) return false;
  Recording recording(op, call, traits);
  if (!recording.find_shapes()) {
    run_after_all_before(call, traits);
    return false;
  }
  if (all_known && recording.is_small()) {
    run_small(op, stack);
    return true;
  }
  recording.record(stack);
  return true;
}

}  // namespace fsdp::deferred
