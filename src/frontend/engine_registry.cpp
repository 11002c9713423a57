#include "frontend/engine_registry.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<std::pair<std::weak_ptr<Communicator>, int64_t>> models;
};

// Never destroyed: parameters may live in static objects.
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

}  // namespace

void register_engine(std::shared_ptr<Engine> engine) {
  std::vector<std::shared_ptr<Engine>> dropped;  // destroyed after the lock is released
  std::lock_guard lock(registry().mutex);
  auto& engines = registry().engines;
  auto in_use = [](const std::shared_ptr<Engine>& e) { return e.use_count() > 1 || !e->unused(); };
  auto unused = std::stable_partition(engines.begin(), engines.end(), in_use);
  dropped.assign(unused, engines.end());
  engines.erase(unused, engines.end());
  engines.push_back(std::move(engine));
}

int64_t number_of_model(const std::shared_ptr<Communicator>& communicator) {
  std::lock_guard lock(registry().mutex);
  auto& models = registry().models;
  std::erase_if(models, [](const auto& entry) { return entry.first.expired(); });
  for (auto& [known, count] : models) {
    if (known.lock() == communicator) {
      return ++count;
    }
  }
  models.emplace_back(communicator, 1);
  return 1;
}

void unregister_engine(const Engine& engine) {
  std::lock_guard lock(registry().mutex);
  std::erase_if(registry().engines, [&](const std::shared_ptr<Engine>& e) { return e.get() == &engine; });
}

}  // namespace fsdp
