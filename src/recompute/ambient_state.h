// The state on which a function depends in addition to its arguments: random generators and autocast.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <vector>

namespace fsdp::recompute {

// Generators, with recorded states. Takes each generator's lock.
class RandomState {
 public:
  explicit RandomState(std::vector<at::Generator> generators);
  // Returns the current states of the same generators.
  RandomState now() const { return RandomState(generators_); }
  void restore() const;

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

// Returns the default generators of the CPU and of the tensors' devices, and `others`.
std::vector<at::Generator> generators_for(const std::vector<at::Tensor>& tensors, std::vector<at::Generator> others);

// The autocast state of this thread, for the CPU and the tensors' devices.
class AutocastState {
 public:
  explicit AutocastState(const std::vector<at::Tensor>& tensors);
  AutocastState now() const;
  void restore() const;

 private:
  struct OfDevice {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };
  AutocastState() = default;
  static OfDevice read(c10::DeviceType device);

  std::vector<OfDevice> devices_;
};

// Disables the cache of autocast while the guard lives: casts of a region, with or without a graph, must not be reused
// by calls outside it.
class NoAutocastCacheGuard {
 public:
  NoAutocastCacheGuard();
  ~NoAutocastCacheGuard();
  NoAutocastCacheGuard(const NoAutocastCacheGuard&) = delete;
  NoAutocastCacheGuard& operator=(const NoAutocastCacheGuard&) = delete;

 private:
  bool before_;
};

// Sets generators and autocast to the recorded state while the guard lives, and restores the previous state afterwards.
class AmbientGuard {
 public:
  AmbientGuard(const std::optional<RandomState>& random, const AutocastState& autocast);
  ~AmbientGuard();
  AmbientGuard(const AmbientGuard&) = delete;
  AmbientGuard& operator=(const AmbientGuard&) = delete;

 private:
  std::optional<RandomState> random_before_;
  AutocastState autocast_before_;
};

}  // namespace fsdp::recompute
