// Sources, where a line has no other:
//   memory: as drivers report it.
//   peak rates, memory bandwidth, multiprocessors: NVIDIA's data sheets and architecture papers, without sparsity.
//   matmul_efficiency: of A100 and of Hopper, calibrated with four published runs (docs/benchmarks/planned-times.md).
//     The best products that ml-engineering (compute/accelerator, table of MAMF, commit 744d01e) measured reach 0.869
//     and 0.804 of the peak: whole runs, on hot devices, 0.86 and 0.72 of that. Of Blackwell, 0.72 of its best product,
//     as Hopper. A guess.
//   memory_efficiency: 0.85, between the 0.90 of Calculon (systems/a100_80g.json) and single measurements; a guess.
//   nic: NVIDIA's DGX data sheets: 8 NICs of 200 Gbit/s (A100) or 400 Gbit/s (H100, H200, B200).
//   curves: ml-engineering, network/README.md, commit 744d01e: all-reduce on one node of 8 devices, 32 KiB to 16 GiB.
//   ll_limit: NCCL, src/graph/tuning.cc, llMaxBws on one node.
#include "planner/target/known_devices.h"

#include <array>

namespace fsdp::planner {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Four blocks of 2 MiB and eight of 16 KiB; 32 MiB from Hopper on.
constexpr int64_t kWorkspace = 2 * 4096 * 1024 + 8 * 16 * 1024;
constexpr int64_t kHopperWorkspace = 32 * kMiB;

int64_t gib(double value) { return static_cast<int64_t>(value * (int64_t{1} << 30)); }

// ---------------------------------------------------------------- speeds by family

DeviceSpeed a100_speed(double memory_bandwidth) {
  return {.float32 = 19.5e12,
          .tensor_float32 = 156e12,
          .float16 = 312e12,
          .bfloat16 = 312e12,
          .multiprocessors = 108,
          .memory_bandwidth = memory_bandwidth,
          .memory_efficiency = 0.85,
          .matmul_efficiency = 0.75,  // 271 TFLOP/s at best
          // FlashAttention-2's paper, forward and backward, head size 128.
          .attention_forward = 0.62,
          .attention_backward = 0.53};
}

DeviceSpeed hopper_speed(double memory_bandwidth) {
  return {.float32 = 67e12,
          .tensor_float32 = 494.5e12,
          .float16 = 989e12,
          .bfloat16 = 989e12,
          .float8 = 1979e12,
          .multiprocessors = 132,
          .memory_bandwidth = memory_bandwidth,
          .memory_efficiency = 0.85,
          .matmul_efficiency = 0.57,  // 795 TFLOP/s at best, on H100 and H200
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
  for (double* rate : {&speed.float32, &speed.tensor_float32, &speed.float16, &speed.bfloat16, &speed.float8}) {
    *rate *= kClock;
  }
  return speed;
}

DeviceSpeed blackwell_speed(double bfloat16, double efficiency) {
  return {.float32 = 80e12,
          .tensor_float32 = bfloat16 / 2,
          .float16 = bfloat16,
          .bfloat16 = bfloat16,
          .float8 = 2 * bfloat16,
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
          .float8 = 330.3e12,
          .multiprocessors = 128,
          .memory_bandwidth = 1008e9,
          .memory_efficiency = 0.9,   // a guess
          .matmul_efficiency = 0.80,  // a guess
          // As A100. A guess.
          .attention_forward = 0.62,
          .attention_backward = 0.53};
}

// ---------------------------------------------------------------- links by family

// GB/s at 32 KiB, 64 KiB, … 16 GiB.
using MeasuredSweep = std::array<double, 20>;
// nccl-tests on A100, where NCCL changes protocol at 8 MiB.
constexpr MeasuredSweep kA100Sweep = {1.31,   2.45,   4.43,   7.47,   11.41,  18.00,  36.18,  72.33,  109.93, 106.16,
                                      138.49, 171.54, 176.92, 194.07, 222.72, 229.04, 231.41, 233.88, 234.61, 234.89};
// H200, with NVLink SHARP.
constexpr MeasuredSweep kH200Sweep = {1.44,   2.93,   5.73,   11.74,  23.94,  39.93,  64.53,  107.16, 155.53, 219.89,
                                      275.84, 346.51, 401.93, 436.15, 450.29, 463.58, 469.17, 473.10, 477.45, 482.26};
// B200, with NVLink SHARP.
constexpr MeasuredSweep kB200Sweep = {1.20,   2.17,   4.86,   9.54,   18.71,  36.06,  63.09,  76.48,  126.49, 254.96,
                                      325.97, 400.60, 568.38, 646.11, 688.99, 723.34, 734.97, 740.64, 839.07, 845.67};

BusbwCurve all_reduce_curve(const MeasuredSweep& sweep) {
  BusbwCurve curve{.function = CollectiveFunction::kAllReduce, .ranks = 8, .nodes = 1};
  double bytes = 32 << 10;
  for (const double gigabytes : sweep) {
    curve.points.push_back({.bytes = bytes, .busbw = gigabytes * 1e9});
    bytes *= 2;
  }
  return curve;
}

LinkSpeed ampere_links() {
  return {.ring = 235e9,  // the curve's end
          .ll_limit = 87.7e9,
          .nic = 25e9,
          .host_copy = 24e9,  // of 32 of PCIe 4. A guess
          .curves = {all_reduce_curve(kA100Sweep)}};
}

LinkSpeed hopper_links() {
  return {.ring = 362e9,  // gathers 361.4, reduce-scatters 362.9, rings of all-reduces 367.2, measured on H200 there
          .ll_limit = 141e9,
          .nic = 50e9,
          .host_copy = 55e9,  // 55.4 measured on PCIe 5
          .curves = {all_reduce_curve(kH200Sweep)}};
}

LinkSpeed blackwell_links() {
  return {.ring = 606e9,  // gathers: 0.6735 of 900, SimuMax, configs/system/b200_bf16_ceperm.json
          .ll_limit = 282e9,
          .nic = 50e9,
          .host_copy = 55e9,  // as Hopper
          .curves = {all_reduce_curve(kB200Sweep)}};
}

LinkSpeed pcie_links() {
  return {.inside = InsideLink::kPcie,
          .ring = 20e9,        // a guess
          .ll_limit = 87.7e9,  // as Ampere; half of `ring` is below it
          .nic = 12.5e9,       // 100 Gbit/s. A guess
          .nics = 1,
          .host_copy = 24e9,  // of 32 of PCIe 4. A guess
          .curves = {}};
}

// The efficiencies of attention, and others.
std::vector<std::string> attention_guesses(std::vector<std::string> guesses = {}) {
  guesses.insert(guesses.end(), {"device.attention_forward", "device.attention_backward"});
  return guesses;
}

std::vector<std::string> calibrated_products() { return {"device.matmul_efficiency"}; }

}  // namespace

const std::vector<KnownDevice>& known_devices() {
  static const std::vector<KnownDevice> devices = {
      {.profile =
           {.name = "a100-40", .title = "NVIDIA A100, 40 GB", .memory = gib(39.49), .matmul_workspace = kWorkspace},
       .speed = a100_speed(1555e9),
       .links = ampere_links(),
       .guesses = {"links.host.bandwidth"},
       .calibrated = calibrated_products()},
      {.profile =
           {.name = "a100-80", .title = "NVIDIA A100, 80 GB", .memory = gib(79.25), .matmul_workspace = kWorkspace},
       .speed = a100_speed(2039e9),
       .links = ampere_links(),
       .guesses = {"links.host.bandwidth"},
       .calibrated = calibrated_products()},
      {.profile = {.name = "h100-80",
                   .title = "NVIDIA H100 SXM, 80 GB",
                   .memory = gib(79.18),
                   .matmul_workspace = kHopperWorkspace},
       .speed = hopper_speed(3350e9),
       .links = hopper_links(),
       .guesses = attention_guesses(),
       .calibrated = calibrated_products()},
      {.profile = {.name = "h100-96",
                   .title = "NVIDIA H100, 96 GB",
                   .memory = gib(94.50),
                   .matmul_workspace = kHopperWorkspace},
       .speed = limited_h100_speed(),
       .links = hopper_links(),
       .guesses = attention_guesses(
           {"device.float32", "device.tensor_float32", "device.float16", "device.bfloat16", "device.float8"}),
       .calibrated = calibrated_products()},
      {.profile = {.name = "h200",
                   .title = "NVIDIA H200, 141 GB",
                   .memory = gib(139.80),
                   .matmul_workspace = kHopperWorkspace},
       .speed = hopper_speed(4800e9),
       .links = hopper_links(),
       .guesses = attention_guesses(),
       .calibrated = calibrated_products()},
      {.profile = {.name = "b200",
                   .title = "NVIDIA B200, 180 GB",
                   .memory = gib(178.35),
                   .matmul_workspace = kHopperWorkspace},
       .speed = blackwell_speed(2250e12, 0.56),  // 1745 TFLOP/s at best
       .links = blackwell_links(),
       .guesses = attention_guesses({"links.host.bandwidth"})},
      {.profile = {.name = "gb200",
                   .title = "NVIDIA GB200, 186 GB",
                   .memory = gib(184.31),
                   .matmul_workspace = kHopperWorkspace},
       .speed = blackwell_speed(2500e12, 0.52),  // 1822 TFLOP/s at best
       .links = blackwell_links(),
       .guesses = attention_guesses({"links.host.bandwidth"})},
      {.profile = {.name = "rtx4090",
                   .title = "NVIDIA GeForce RTX 4090, 24 GB",
                   .memory = gib(23.64),
                   .matmul_workspace = kWorkspace},
       .speed = rtx4090_speed(),
       .links = pcie_links(),
       .nic_for_each = false,
       .guesses = attention_guesses({"links.inside.bandwidth", "links.inside.ll_limit", "links.network.nic_bandwidth",
                                     "links.network.nics", "links.host.bandwidth"})},
  };
  return devices;
}

const KnownDevice* find_known_device(const std::string& name) {
  for (const KnownDevice& device : known_devices()) {
    if (device.profile.name == name || device.profile.name.rfind(name + "-", 0) == 0) return &device;
  }
  return nullptr;
}

LinkSpeed KnownDevice::host_links(int ranks) const {
  LinkSpeed of_host = links;
  if (nic_for_each) of_host.nics = ranks;
  return of_host;
}

}  // namespace fsdp::planner
