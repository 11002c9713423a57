// What users ask of the engine directly: gathering by hand, whole parameters, writes.
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include "engine/engine.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/shard_version.h"

namespace fsdp {
namespace {

// Undoes an action at the end of a scope.
class Finally {
 public:
  explicit Finally(std::function<void()> action) : action_(std::move(action)) {}
  ~Finally() { action_(); }
  Finally(const Finally&) = delete;

 private:
  std::function<void()> action_;
};

// The elements' bit patterns: comparing them tells -0 from 0, and finds a NaN equal to itself.
at::Tensor bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return tensor.view(at::kByte);
    case 2:
      return tensor.view(at::kShort);
    case 4:
      return tensor.view(at::kInt);
    default:
      return tensor.view(at::kLong);
  }
}

at::Tensor gather_in_shard_dtype(const FlatParameter& flat, Unit& unit) {
  if (flat.position().factor == 1) {
    return flat.shard().detach();
  }
  at::Tensor full = at::empty({flat.layout().padded_numel()}, flat.shard().options());
  unit.groups().shard->all_gather(full, flat.shard().detach(), unit.next_id(Pass::kUser))->wait();
  return full;
}

}  // namespace

void Engine::check_membership() {
  for (auto& unit : units_) {
    unit->check_membership();
  }
}

void Engine::unshard() {
  std::vector<Unit*> entered;
  Finally unpin([&] {
    for (Unit* unit : entered) {
      std::lock_guard lock(unit->mutex);
      --unit->pins;
    }
  });
  for (auto& unit : units_) {
    enter(*unit);  // pinned until all are gathered: entering one unit may release others
    entered.push_back(unit.get());
  }
}

void Engine::reshard() {
  for (auto& unit : units_) {
    release_if_idle(*unit);
    std::lock_guard lock(unit->mutex);
    unit->unpark(parameter_pool_);
  }
  last_entered_ = nullptr;
}

void Engine::reset() {
  discard_captures();
  forget_accumulated();
  reshard();
}

void Engine::pin(const std::vector<Unit*>& units, const std::function<void()>& body) {
  std::vector<Unit*> entered;
  Finally unpin([&] {
    for (Unit* unit : entered) {
      leave(*unit);
    }
  });
  for (Unit* unit : units) {
    enter(*unit);
    entered.push_back(unit);
  }
  body();
}

std::vector<Unit*> Engine::all_units() const {
  std::vector<Unit*> all;
  for (const auto& unit : units_) {
    all.push_back(unit.get());
  }
  return all;
}

void Engine::with_full_params(const std::function<void()>& body, bool writeback) {
  // Writes that are dropped in the end (no write-back, or an exception) must not go to the shards themselves.
  bool may_alias = may_alias_;
  Finally restore([&] { may_alias_ = may_alias; });
  reshard();
  may_alias_ = false;
  std::vector<Unit*> all = all_units();
  pin(all, [&] {
    ++write_scopes_;
    bool keep = false;  // what was written; not after an exception
    Finally close([&] {
      --write_scopes_;
      for (Unit* unit : all) {
        unit->release_when_unpinned |= !keep;
      }
    });
    body();
    if (writeback) {
      for (Unit* unit : all) {
        write_back(*unit);
      }
      keep = true;
    }
  });
}

// Only elements that were written go back: where the unsharded value still is the rounded shard value, the shard keeps
// its full precision.
void Engine::write_back(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  TORCH_CHECK(unit.stamp == unit.shard_version(), "fsdp: ", unit.where(),
              ": its shards were written inside with_full_params (an optimizer step?), which the values written to the "
              "parameters would overwrite. Write the one or the other");
  seams::CleanDispatchGuard clean;
  for (auto& flat : unit.flat_parameters()) {
    at::Tensor full = unit.unsharded(*flat);
    if (!full.defined()) {
      seams::bump_version(flat->shard());
      continue;
    }
    int64_t n = flat->layout().shard_numel();
    at::Tensor own = full.narrow(0, flat->position().rank * n, n);
    at::Tensor written = bits_of(own).ne(bits_of(flat->shard().to(flat->dtypes().compute)));
    flat->shard().copy_(at::where(written, own.to(flat->dtypes().shard), flat->shard()));
    seams::bump_version(flat->shard());
  }
  unit.invalidate_saved_values();
  unit.unpark(parameter_pool_);
  unit.stamp = unit.shard_version();
}

void Engine::for_each_full_parameter(const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  prepare();
  for (auto& unit : units_) {
    unit->check_membership();
    for (auto& flat : unit->flat_parameters()) {
      at::Tensor full;
      {
        seams::CleanDispatchGuard clean;
        full = gather_in_shard_dtype(*flat, *unit);
      }
      for (size_t i = 0; i < flat->parameters().size(); ++i) {
        visit(flat->parameters()[i].fqn, flat->view_in(full, static_cast<int64_t>(i)));
      }
    }
  }
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.gathered_bytes = parameter_pool_.in_use_bytes();
  stats.peak_gathered_bytes = parameter_pool_.peak_bytes();
  stats.reduce_scatters = reducer_.reduce_scatters();
  stats.all_reduces = reducer_.all_reduces();
  stats.gradient_buffer_bytes = reducer_.pool().in_use_bytes();
  stats.peak_gradient_buffer_bytes = reducer_.pool().peak_bytes();
  std::lock_guard lock(mutex_);
  stats.gathered_units = static_cast<int64_t>(gathered_.size());
  return stats;
}

void Engine::set_strict_release(bool on) {
  reshard();
  strict_ = on;
  may_alias_ = !on;
  parameter_pool_.set_poison(on);
}

}  // namespace fsdp
