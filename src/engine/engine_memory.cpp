// The memory that the units of a step need at a time.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/allocated_memory.h"
#include "engine/engine.h"
#include "schedule/block_places.h"
#include "schedule/memory_bounds.h"

namespace fsdp {

// Plans by the order of the last forward and the last backward. A plan only grows: if the order changes from step to
// step, the plan is for the order that needs most.
void Engine::plan_memory() {
  const auto nbytes = [](const schedule::ScheduledUnit& unit) {
    const int64_t of_block = as_unit(unit).block_nbytes();
    return of_block > 0 ? schedule::BlockPlaces::rounded(of_block) : 0;
  };
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const int64_t together =
        schedule::largest_window(residency_.last_pass(pass), options_.overlap.max_gathered_units, nbytes);
    planned_parameters_ = std::max(planned_parameters_, together);
  }
  planned_gradients_ = std::max(planned_gradients_, reducer_.passing_nbytes());
  gradient_shards_nbytes();  // notes their peak, which is now
  parameter_pool_.plan(planned_parameters_);
  reducer_.pool().plan(planned_gradients_);
}

namespace {

// Returns how many bytes of a group's memory this rank needs in a step in addition to its shards: the gradients of the
// shards and, for two units at a time, its part of the gathered parameters and the gradient buffers.
int64_t step_nbytes(const std::vector<std::unique_ptr<Unit>>& units, const Communicator* group) {
  int64_t shards = 0;
  std::vector<int64_t> passing{0, 0};
  for (const auto& unit : units) {
    if (unit->groups().shard.get() != group) {
      continue;
    }
    int64_t unit_nbytes = 0;
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      const FlatParameter& flat = *unit->flat_parameters()[i];
      if (flat.publishes()) {
        unit_nbytes += static_cast<int64_t>(flat.shared_unsharded().nbytes()) / group->size();
      }
      if (const FlatGradient* gradient = unit->gradient(i)) {
        unit_nbytes += gradient->buffer_nbytes();
        shards += flat.layout().shard_numel() * static_cast<int64_t>(c10::elementSize(flat.dtypes().gradient));
      }
    }
    passing.push_back(unit_nbytes);
  }
  std::partial_sort(passing.begin(), passing.begin() + 2, passing.end(), std::greater<>());
  return shards + passing[0] + passing[1];
}

}  // namespace

void Engine::share_shards() {
  std::vector<Communicator*> groups;
  for (const auto& unit : units_) {
    Communicator* group = unit->groups().shard.get();
    if (group && std::find(groups.begin(), groups.end(), group) == groups.end()) {
      groups.push_back(group);
      group->share_buffers(step_nbytes(units_, group), {"shards", 0, Pass::kSetup});
    }
  }
}

int64_t Engine::gradient_shards_nbytes() {
  int64_t nbytes = 0;
  for (auto& unit : units_) {
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      const FlatGradient* gradient = unit->gradient(i);
      nbytes += gradient ? gradient->leaves().memory_nbytes() : 0;
    }
  }
  int64_t peak = peak_gradient_shards_;
  while (nbytes > peak && !peak_gradient_shards_.compare_exchange_weak(peak, nbytes)) {
  }
  return nbytes;
}

std::vector<MemoryCategory> Engine::memory() {
  int64_t shards = 0, gradients = gradient_shards_nbytes();
  for (auto& unit : units_) {
    for (const auto& flat : unit->flat_parameters()) {
      shards += static_cast<int64_t>(flat->shard().nbytes());
    }
  }
  const BufferPool& captured = reducer_.pool();
  const ShardMemory& memory = options_.memory;
  return {{"parameter shards" + memory.where(), shards, shards, shards},
          {memory.apart() ? "gradient shards (host)" : "gradient shards", gradients, peak_gradient_shards_, gradients},
          {"unsharded parameters", parameter_pool_.in_use_bytes(), parameter_pool_.peak_bytes(),
           parameter_pool_.peak_reserved_bytes()},
          {"gradient buffers", captured.in_use_bytes(), captured.peak_bytes(), captured.peak_reserved_bytes()}};
}

void Engine::start_trace(std::function<std::vector<MemoryCategory>()> more) {
  trace_.start([this, more = std::move(more)] { return memory_now(more ? more() : std::vector<MemoryCategory>()); });
}

// Optimizer state, and everything else in `more`, lies where shards lie. Gradients of shards never lie in files.
std::vector<std::pair<std::string, int64_t>> Engine::memory_now(const std::vector<MemoryCategory>& more) {
  std::vector<MemoryCategory> categories = memory();
  const ShardMemory& place = options_.memory;
  const int64_t shards = categories[0].current, gradients = categories[1].current;
  int64_t elsewhere = (place.apart() || place.files() ? shards : 0) + (place.apart() ? gradients : 0);
  for (const MemoryCategory& category : more) {
    categories.push_back(category);
    elsewhere += place.apart() || place.files() ? category.current : 0;
  }
  const int64_t in_pools = parameter_pool_.reserved_bytes() + reducer_.pool().reserved_bytes();
  categories.push_back({"buffers kept for reuse", in_pools - categories[2].current - categories[3].current});
  std::vector<std::pair<std::string, int64_t>> bytes;
  int64_t known = 0;
  for (const MemoryCategory& category : categories) {
    bytes.emplace_back(category.name, category.current);
    known += category.current;
  }
  if (const auto allocated = allocated_bytes(device())) {
    bytes.emplace_back("everything else", std::max<int64_t>(0, *allocated - (known - elsewhere)));
  }
  return bytes;
}

}  // namespace fsdp
