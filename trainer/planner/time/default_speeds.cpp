// Sources, where a line has no other:
//   peak rates, memory bandwidth, multiprocessors: NVIDIA's data sheets and architecture papers, without sparsity.
//   matmul_efficiency: 0.92 (a guess) of the best product that ml-engineering (compute/accelerator, table of MAMF,
//     commit 744d01e) measured, over the peak.
//   memory_efficiency: 0.85, between the 0.90 of Calculon (systems/a100_80g.json) and single measurements; a guess.
#include "planner/time/default_speeds.h"

#include <map>

namespace fsdp::planner {
namespace {

DeviceSpeed a100_speed(double memory_bandwidth) {
  return {.float32 = 19.5e12,
          .tensor_float32 = 156e12,
          .float16 = 312e12,
          .bfloat16 = 312e12,
          .multiprocessors = 108,
          .memory_bandwidth = memory_bandwidth,
          .memory_efficiency = 0.85,
          .matmul_efficiency = 0.80,  // 271 TFLOP/s at best
          // FlashAttention-2's paper, forward and backward, head size 128.
          .attention_forward = 0.62,
          .attention_backward = 0.53};
}

DeviceSpeed hopper_speed(double memory_bandwidth) {
  return {.float32 = 67e12,
          .tensor_float32 = 494.5e12,
          .float16 = 989e12,
          .bfloat16 = 989e12,
          .multiprocessors = 132,
          .memory_bandwidth = memory_bandwidth,
          .memory_efficiency = 0.85,
          .matmul_efficiency = 0.74,  // 795 TFLOP/s at best, on H100 and H200
          // FlashAttention-2, which LibTorch contains: 35 % according to FlashAttention-3's paper; split into forward
          // and backward by the ratio of A100. A guess.
          .attention_forward = 0.38,
          .attention_backward = 0.33};
}

// 2.4 TB/s of HBM2e and 500 W in place of 700 W.
DeviceSpeed limited_h100_speed() {
  DeviceSpeed speed = hopper_speed(2400e9);
  // Sustained clocks under the lower limit. A guess.
  constexpr double kClock = 0.93;
  for (double* rate : {&speed.float32, &speed.tensor_float32, &speed.float16, &speed.bfloat16}) *rate *= kClock;
  return speed;
}

DeviceSpeed blackwell_speed(double bfloat16, double efficiency) {
  return {.float32 = 80e12,
          .tensor_float32 = bfloat16 / 2,
          .float16 = bfloat16,
          .bfloat16 = bfloat16,
          .multiprocessors = 148,
          .memory_bandwidth = 8000e9,
          // Between SimuMax's 0.67 (configs/system/b200_bf16_ceperm.json) and that of older devices. A guess.
          .memory_efficiency = 0.75,
          .matmul_efficiency = efficiency,
          // SimuMax's means for B200 are 0.71 and 0.69. It counts causal attention in full: its A100 exceeds 1.
          .attention_forward = 0.35,
          .attention_backward = 0.35};
}

DeviceSpeed rtx4090_speed() {
  return {.float32 = 82.6e12,
          .tensor_float32 = 82.6e12,
          .float16 = 165.2e12,  // with sums in fp32
          .bfloat16 = 165.2e12,
          .multiprocessors = 128,
          .memory_bandwidth = 1008e9,
          .memory_efficiency = 0.9,   // a guess
          .matmul_efficiency = 0.80,  // a guess
          // As A100. A guess.
          .attention_forward = 0.62,
          .attention_backward = 0.53};
}

const std::map<std::string, DeviceSpeed>& speeds_by_name() {
  static const std::map<std::string, DeviceSpeed> speeds = {
      {"a100-40", a100_speed(1555e9)},
      {"a100-80", a100_speed(2039e9)},
      {"h100-80", hopper_speed(3350e9)},
      {"h100-96", limited_h100_speed()},
      {"h200", hopper_speed(4800e9)},
      {"b200", blackwell_speed(2250e12, 0.71)},   // 1745 TFLOP/s at best
      {"gb200", blackwell_speed(2500e12, 0.67)},  // 1822 TFLOP/s at best
      {"rtx4090", rtx4090_speed()},
  };
  return speeds;
}

}  // namespace

const DeviceSpeed* find_device_speed(const std::string& name) {
  const auto found = speeds_by_name().find(name);
  return found == speeds_by_name().end() ? nullptr : &found->second;
}

}  // namespace fsdp::planner
