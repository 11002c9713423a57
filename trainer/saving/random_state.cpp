#include "saving/random_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <mutex>
#include <vector>

namespace fsdp::trainer {

namespace {

struct NamedGenerator {
  std::string name;
  at::Generator generator;
};

std::vector<NamedGenerator> generators(c10::Device device) {
  std::vector<NamedGenerator> all = {{"random_state.cpu", at::globalContext().defaultGenerator(c10::kCPU)}};
  if (device.is_cuda()) all.push_back({"random_state.cuda", at::globalContext().defaultGenerator(device)});
  return all;
}

}  // namespace

std::map<std::string, at::Tensor> random_state(c10::Device device) {
  std::map<std::string, at::Tensor> state;
  for (NamedGenerator& each : generators(device)) {
    const std::lock_guard lock(each.generator.mutex());
    state[each.name] = each.generator.get_state();
  }
  return state;
}

void set_random_state(const std::map<std::string, at::Tensor>& state, c10::Device device) {
  for (NamedGenerator& each : generators(device)) {
    const auto found = state.find(each.name);
    if (found == state.end()) continue;
    const std::lock_guard lock(each.generator.mutex());
    each.generator.set_state(found->second);
  }
}

}  // namespace fsdp::trainer
