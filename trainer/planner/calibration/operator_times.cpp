#include "planner/calibration/operator_times.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <memory>
#include <unordered_map>
#include <utility>

#include "planner/device/planned_operators.h"
#include "planner/tape/kernel_traffic.h"

namespace fsdp::planner {
namespace {

using Clock = std::chrono::steady_clock;

OperatorTimes* observer = nullptr;

// The operator of this thread that is being timed.
struct Running {
  bool is_inside = false;
  double apart = 0;  // seconds of conversions inside it that count by themselves, with those of observing them
};
thread_local Running running_operator;

// The dispatcher's copies of the arguments end with the begin of a call.
struct Began : at::ObserverContext {
  Began(c10::OperatorHandle op_, torch::jit::Stack arguments_, bool apart_)
      : op(std::move(op_)), arguments(std::move(arguments_)), apart(apart_) {}
  c10::OperatorHandle op;
  torch::jit::Stack arguments;
  bool apart;
  Clock::time_point called;
  Clock::time_point at;
};

// Returns the operator if plans take it for one kernel. Looking one up takes longer than a small kernel does.
const std::optional<c10::OperatorHandle>& planned_operator(const c10::OperatorName& name) {
  thread_local std::unordered_map<c10::OperatorName, std::optional<c10::OperatorHandle>> known;
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  auto op = c10::Dispatcher::singleton().findOp(name);
  if (op && !(op->hasSchema() && is_planned(*op))) op.reset();
  return known.emplace(name, std::move(op)).first->second;
}

// Whether this call inside another operator converts the shards of a unit: the engine does so in the operator that
// first needs a parameter. Operators of LibTorch convert no flat tensors inside.
bool converts_shards(const c10::OperatorName& name, c10::ArrayRef<const c10::IValue> arguments) {
  if (name.name != "aten::copy_" || !arguments[0].isTensor() || !arguments[1].isTensor()) return false;
  const at::Tensor &to = arguments[0].toTensor(), &from = arguments[1].toTensor();
  return to.dim() == 1 && from.dim() == 1 && to.scalar_type() != from.scalar_type();
}

std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& call) {
  const Clock::time_point called = Clock::now();
  const auto name = call.operator_name();
  if (!name || (running_operator.is_inside && !converts_shards(*name, call.inputs()))) return nullptr;
  const auto& op = planned_operator(*name);
  if (!op) return nullptr;
  auto began = std::make_unique<Began>(*op, torch::jit::Stack(call.inputs().begin(), call.inputs().end()),
                                       std::exchange(running_operator.is_inside, true));
  began->called = called;
  began->at = Clock::now();
  return began;
}

void end_call(const at::RecordFunction& call, at::ObserverContext* context) {
  if (!context) return;
  const auto& began = static_cast<const Began&>(*context);
  double seconds = std::chrono::duration<double>(Clock::now() - began.at).count();
  if (!began.apart) seconds -= std::exchange(running_operator, {}).apart;
  const torch::jit::Stack results = call.outputs();
  const KernelCall kernel{began.op, began.arguments, results, Place::kHost, -1};
  observer->add({.name = c10::toString(began.op.operator_name()),
                 .bytes = kernel_traffic(kernel).bytes,
                 .work = product_work(kernel),
                 .seconds = seconds});
  if (began.apart) running_operator.apart += std::chrono::duration<double>(Clock::now() - began.called).count();
}

}  // namespace

OperatorTimes::OperatorTimes() {
  TORCH_CHECK(!observer, "only one OperatorTimes may exist at a time");
  observer = this;
  callback_ = at::addGlobalCallback(at::RecordFunctionCallback(&begin_call, &end_call)
                                        .needsInputs(true)
                                        .needsOutputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
}

OperatorTimes::~OperatorTimes() {
  at::removeCallback(callback_);
  observer = nullptr;
}

std::vector<OperatorSample> OperatorTimes::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(samples_, {});
}

void OperatorTimes::add(OperatorSample sample) {
  std::lock_guard lock(mutex_);
  samples_.push_back(std::move(sample));
}

}  // namespace fsdp::planner
