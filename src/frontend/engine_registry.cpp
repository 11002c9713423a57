#include "frontend/engine_registry.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsdp::frontend {
namespace {

// While there are few engines, each new engine frees the unused ones. Later, their number must double first: if
// thousands of modules are annotated one by one, each has an engine until the last call absorbs them.
constexpr size_t kFewEngines = 64;

struct Registry {
  std::mutex mutex;
  std::unordered_map<const engine::Engine*, std::shared_ptr<engine::Engine>> engines;
  size_t next_sweep = kFewEngines;  // number of engines at which unused engines are freed
  std::vector<std::pair<std::weak_ptr<Communicator>, int64_t>> models;
};

// Never destroyed, because parameters may live in static objects.
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

}  // namespace

void register_engine(std::shared_ptr<engine::Engine> engine) {
  std::vector<std::shared_ptr<engine::Engine>> released;  // destroyed after the lock is released
  std::lock_guard lock(registry().mutex);
  auto& engines = registry().engines;
  if (engines.size() < kFewEngines || engines.size() >= registry().next_sweep) {
    for (auto it = engines.begin(); it != engines.end();) {
      const bool in_use = it->second.use_count() > 1 || !it->second->tree().unused();
      if (!in_use) released.push_back(std::move(it->second));
      it = in_use ? std::next(it) : engines.erase(it);
    }
    registry().next_sweep = std::max(kFewEngines, 2 * engines.size());
  }
  const engine::Engine* identity = engine.get();
  engines.emplace(identity, std::move(engine));
}

int64_t number_of_model(const std::shared_ptr<Communicator>& communicator) {
  std::lock_guard lock(registry().mutex);
  auto& models = registry().models;
  std::erase_if(models, [](const auto& entry) { return entry.first.expired(); });
  for (auto& [known, count] : models) {
    if (known.lock() == communicator) return ++count;
  }
  models.emplace_back(communicator, 1);
  return 1;
}

void unregister_engine(const engine::Engine& engine) {
  std::lock_guard lock(registry().mutex);
  registry().engines.erase(&engine);
}

}  // namespace fsdp::frontend
