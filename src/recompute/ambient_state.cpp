#include "recompute/ambient_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace fsdp::recompute {
namespace {

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices = {c10::Device(c10::kCPU)};
  for (const at::Tensor& tensor : tensors) {
    const bool has_generator = tensor.defined() && !tensor.is_meta() && !tensor.is_cpu();
    if (has_generator && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

}  // namespace

RandomState::RandomState(std::vector<at::Generator> generators) : generators_(std::move(generators)) {
  for (at::Generator& generator : generators_) {
    std::lock_guard lock(generator.mutex());
    states_.push_back(generator.get_state());
  }
}

void RandomState::restore() const {
  for (size_t i = 0; i < generators_.size(); ++i) {
    at::Generator generator = generators_[i];
    std::lock_guard lock(generator.mutex());
    generator.set_state(states_[i]);
  }
}

std::vector<at::Generator> generators_for(const std::vector<at::Tensor>& tensors, std::vector<at::Generator> others) {
  std::vector<at::Generator> generators;
  for (const c10::Device& device : devices_of(tensors)) {
    generators.push_back(at::globalContext().defaultGenerator(device));
  }
  generators.insert(generators.end(), others.begin(), others.end());
  return generators;
}

AutocastState::OfDevice AutocastState::read(c10::DeviceType device) {
  return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}

AutocastState::AutocastState(const std::vector<at::Tensor>& tensors) {
  for (const c10::Device& device : devices_of(tensors)) {
    const bool seen = std::any_of(devices_.begin(), devices_.end(),
                                  [&](const OfDevice& known) { return known.device == device.type(); });
    if (!seen && at::autocast::is_autocast_available(device.type())) devices_.push_back(read(device.type()));
  }
}

AutocastState AutocastState::now() const {
  AutocastState current;
  for (const OfDevice& known : devices_) current.devices_.push_back(read(known.device));
  return current;
}

void AutocastState::restore() const {
  for (const OfDevice& known : devices_) {
    at::autocast::set_autocast_enabled(known.device, known.enabled);
    at::autocast::set_autocast_dtype(known.device, known.dtype);
  }
}

NoAutocastCacheGuard::NoAutocastCacheGuard() : before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoAutocastCacheGuard::~NoAutocastCacheGuard() { at::autocast::set_autocast_cache_enabled(before_); }

AmbientGuard::AmbientGuard(const std::optional<RandomState>& random, const AutocastState& autocast)
    : autocast_before_(autocast.now()) {
  if (random) {
    random_before_ = random->now();
    random->restore();
  }
  autocast.restore();
}

AmbientGuard::~AmbientGuard() {
  autocast_before_.restore();
  if (random_before_) random_before_->restore();
}

}  // namespace fsdp::recompute
