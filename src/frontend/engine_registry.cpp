#include "frontend/engine_registry.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace fsdp {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Engine>> engines;
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

void unregister_engine(const Engine& engine) {
  std::lock_guard lock(registry().mutex);
  std::erase_if(registry().engines, [&](const std::shared_ptr<Engine>& e) { return e.get() == &engine; });
}

}  // namespace fsdp
