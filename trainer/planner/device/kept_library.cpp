#include "planner/device/kept_library.h"

#include <memory>
#include <vector>

namespace fsdp::planner {

torch::Library& kept_library(const char* space, c10::DispatchKey key) {
  static auto& kept = *new std::vector<std::unique_ptr<torch::Library>>;
  kept.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, space, key, __FILE__, __LINE__));
  return *kept.back();
}

}  // namespace fsdp::planner
