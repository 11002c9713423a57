// Sources, where a line has no other:
//   nic: NVIDIA's DGX data sheets: 8 NICs of 200 Gbit/s (A100) or 400 Gbit/s (H100, H200, B200).
//   curves: ml-engineering, network/README.md, commit 744d01e: all-reduce on one node of 8 devices, 32 KiB to 16 GiB.
//   ll_limit: NCCL, src/graph/tuning.cc, llMaxBws on one node.
#include "planner/time/default_links.h"

#include <array>
#include <stdexcept>

namespace fsdp::planner {
namespace {

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

LinkSpeed with_nics(LinkSpeed links, int nics) {
  links.nics = nics;
  return links;
}

}  // namespace

LinkSpeed default_links(const std::string& name, int ranks) {
  if (name == "a100-40" || name == "a100-80") return with_nics(ampere_links(), ranks);
  if (name == "h100-80" || name == "h100-96" || name == "h200") return with_nics(hopper_links(), ranks);
  if (name == "b200" || name == "gb200") return with_nics(blackwell_links(), ranks);
  if (name == "rtx4090") return pcie_links();
  throw std::invalid_argument("no links are known for the device \"" + name + "\"");
}

}  // namespace fsdp::planner
