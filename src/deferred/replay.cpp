#include "deferred/replay.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "base/map_tensors.h"
#include "base/transient_memory.h"
#include "base/visit_tensors.h"
#include "deferred/draw_sequence.h"
#include "torch_seams/clean_dispatch.h"

namespace fsdp::deferred {
namespace {

using Key = const c10::StorageImpl*;
Key key_of(const c10::Storage& storage) { return storage.unsafeGetStorageImpl(); }

c10::Storage allocate(const c10::Storage& twin, c10::Device device) {
  return base::transient_bytes(static_cast<int64_t>(twin.nbytes()), device).storage();
}

// Returns an empty storage for an argument of which only the shape matters.
c10::Storage nothing(c10::Device device) { return base::transient_bytes(0, device).storage(); }

class Replay {
 public:
  std::vector<c10::Storage> run(const std::vector<StorageState>& wanted) FSDP_REQUIRES(replay_mutex) {
    for (const StorageState& state : wanted) {
      wanted_.insert(key_of(state.twin));
      collect(state.writer);
    }
    std::sort(operators_.begin(), operators_.end(), [](const auto& a, const auto& b) { return a->number < b->number; });
    run_other_draws_first();
    note_last_uses();
    for (const OperatorPtr& op : operators_) run_one(op);
    std::vector<c10::Storage> result;
    for (const StorageState& state : wanted) result.push_back(memory_of(state.twin, state.device));
    return result;
  }

  void draw(const RecordedOperator& op, const std::function<void()>& begin) FSDP_REQUIRES(replay_mutex) {
    std::vector<StorageState> needed;
    for (const RecordedOperator::Input& input : op.inputs) {
      if (input.read && !(op.fills && input.written)) needed.push_back({input.twin, input.writer, input.device});
    }
    std::vector<c10::Storage> storages = needed.empty() ? std::vector<c10::Storage>{} : replay(needed);
    for (size_t i = 0; i < needed.size(); ++i) memory_.emplace(key_of(needed[i].twin), storages[i]);
    begin();
    call(op);
  }

 private:
  // Collects operators depth first, without recursion, because chains of operators are long.
  void collect(const OperatorPtr& last) {
    std::vector<OperatorPtr> open{last};
    while (!open.empty()) {
      OperatorPtr op = std::move(open.back());
      open.pop_back();
      if (!op || !seen_.insert(op.get()).second) continue;
      for (const RecordedOperator::Input& input : op->inputs) {
        if (input.read) open.push_back(input.writer);
      }
      operators_.push_back(std::move(op));
    }
  }

  void run_other_draws_first() FSDP_REQUIRES(replay_mutex) {
    std::map<DrawSequence*, std::vector<size_t>> draws;
    for (const OperatorPtr& op : operators_) {
      if (op->draws) draws[op->draws.get()].push_back(op->draw);
    }
    for (auto& [sequence, wanted] : draws) sequence->run_others_before(wanted);
  }

  void note_last_uses() {
    for (const OperatorPtr& op : operators_) {
      for (const RecordedOperator::Input& input : op->inputs) last_use_[key_of(input.twin)] = op.get();
      for (const RecordedOperator::Output& output : op->outputs) last_use_[key_of(output.shape.storage())] = op.get();
    }
  }

  void run_one(const OperatorPtr& op) FSDP_REQUIRES(replay_mutex) {
    for (const auto& [tensor, version] : op->borrowed) {
      TORCH_CHECK(tensor._version() == version, "fsdp: an ordinary tensor of shape ", tensor.sizes(),
                  " that the recorded initialisation reads (argument of ", op->op.schema().name(),
                  ") was written to after it was recorded: tensors above 1 MiB are not copied. Pass a clone, or "
                  "call materialize before writing");
    }
    if (op->draws) {
      op->draws->run(op->draw, [&] { call(*op); });
    } else {
      call(*op);
    }
    auto release = [&](Key storage) {
      if (last_use_.at(storage) == op.get() && wanted_.count(storage) == 0) memory_.erase(storage);
    };
    for (const RecordedOperator::Input& input : op->inputs) release(key_of(input.twin));
    for (const RecordedOperator::Output& output : op->outputs) release(key_of(output.shape.storage()));
  }

  c10::Storage memory_of(const c10::Storage& twin, c10::Device device) {
    auto it = memory_.find(key_of(twin));
    if (it == memory_.end()) it = memory_.emplace(key_of(twin), allocate(twin, device)).first;
    return it->second;
  }

  void call(const RecordedOperator& op) {
    for (const RecordedOperator::Input& input : op.inputs) {
      if (input.read || input.written) {
        memory_of(input.twin, input.device);
      } else {
        memory_.emplace(key_of(input.twin), nothing(input.device));
      }
    }
    torch::jit::Stack stack;
    for (const c10::IValue& argument : op.arguments) {
      stack.push_back(base::map_tensors(argument, [&](const at::Tensor& tensor) {
        auto known = tensor.has_storage() ? memory_.find(key_of(tensor.storage())) : memory_.end();
        return known == memory_.end() ? tensor : tensor_over(known->second, tensor);
      }));
    }
    op.op.callBoxed(stack);
    take_results(op, stack);
  }

  void take_results(const RecordedOperator& op, const torch::jit::Stack& stack) {
    std::vector<at::Tensor> results;
    for (const c10::IValue& value : stack) {
      base::visit_tensors(value, [&](const at::Tensor& tensor) {
        if (tensor.defined()) results.push_back(tensor);
      });
    }
    for (const RecordedOperator::Output& output : op.outputs) {
      memory_.emplace(key_of(output.shape.storage()), as_recorded(results.at(output.position), output.shape));
    }
  }

  // Returns the memory of a result, laid out as recorded and not shared with other storages.
  c10::Storage as_recorded(const at::Tensor& result, const at::Tensor& shape) const {
    bool shared = std::any_of(memory_.begin(), memory_.end(),
                              [&](const auto& entry) { return key_of(entry.second) == key_of(result.storage()); });
    bool same = result.sizes() == shape.sizes() && result.strides() == shape.strides() &&
                result.storage_offset() == shape.storage_offset() && result.scalar_type() == shape.scalar_type() &&
                result.storage().nbytes() >= shape.storage().nbytes();
    if (same && !shared) return result.storage();
    c10::Storage storage = allocate(shape.storage(), result.device());
    tensor_over(storage, shape).copy_(result);
    return storage;
  }

  std::set<Key> wanted_;
  std::set<const RecordedOperator*> seen_;
  std::vector<OperatorPtr> operators_;
  std::map<Key, const RecordedOperator*> last_use_;
  std::map<Key, c10::Storage> memory_;  // by twin
};

}  // namespace

at::Tensor tensor_over(const c10::Storage& storage, const at::Tensor& shape) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions(shape.scalar_type()).device(storage.device()));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
  return tensor;
}

std::vector<c10::Storage> replay(const std::vector<StorageState>& wanted) {
  seams::CleanDispatchGuard clean;
  return Replay().run(wanted);
}

void draw_into_scratch(const RecordedOperator& op, const std::function<void()>& begin) {
  seams::CleanDispatchGuard clean;
  Replay().draw(op, begin);
}

}  // namespace fsdp::deferred
