// What a function depends on besides its arguments: random generators and autocast.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <vector>

namespace fsdp {

// Generators and the states that they were in. Takes each generator's lock.
class RandomState {
 public:
  explicit RandomState(std::vector<at::Generator> generators);
  // The same generators' states now.
  RandomState now() const { return RandomState(generators_); }
  void restore() const;

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

// The default generators of the CPU and of the tensors' devices, and `others`.
std::vector<at::Generator> generators_for(const std::vector<at::Tensor>& tensors, std::vector<at::Generator> others);

// Autocast of this thread, for the CPU and the tensors' devices.
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

// While it lives, autocast keeps no casts: those of a region, with or without a graph, must not serve calls outside it.
class NoAutocastCacheGuard {
 public:
  NoAutocastCacheGuard();
  ~NoAutocastCacheGuard();
  NoAutocastCacheGuard(const NoAutocastCacheGuard&) = delete;
  NoAutocastCacheGuard& operator=(const NoAutocastCacheGuard&) = delete;

 private:
  bool before_;
};

// While it lives, generators and autocast are as recorded; then as they were before.
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

}  // namespace fsdp
