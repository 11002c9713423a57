// Figure 2 of the paper: how the speed of all-gathers depends on the form and the size of their inputs.
//
// The text does not say how many GPUs gathered; here two hosts do.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/paper/paper_check.h"
#include "planner/target/cluster.h"

namespace fsdp::planner {

// The forms of figure 2(a).
enum class GatherForm : uint8_t {
  kEven,      // NCCL's all-gather
  kList,      // likewise, then the result is copied into a tensor for each rank
  kUneven,    // a broadcast from each rank, all in one launch; rank 0 has 1 element more, and rank 1 less
  kUneven1e6  // 10^6 elements
};

// Returns the seconds of an all-gather of so many fp32 elements in all.
double gather_seconds(GatherForm form, int64_t elements, const Cluster& cluster);

// Returns the seconds of all-gathers of so many elements each, one after another, of 2^30 in all.
double split_gather_seconds(int64_t elements, const Cluster& cluster);

// Powers of two.
const std::vector<int>& gathered_powers();  // of figure 2(a)
const std::vector<int>& split_powers();     // of figure 2(b)

std::vector<PaperCheck> bandwidth_checks(const Cluster& cluster);

}  // namespace fsdp::planner
