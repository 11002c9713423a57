// The search for the configs of a run that are fastest, or need the least memory, by planning many of them.
#pragma once

#include <cstddef>
#include <vector>

#include "planner/search/candidates.h"

namespace fsdp::planner {

// Plans candidates in this order: each choice alone, with the batch of the config; the crossed dimensions with one
// another; the neighbours of the candidate that needs the least memory, which differ from it in one choice, until none
// needs less; those of the fastest, until none is faster; the smaller batches of all combinations on the front. In the
// second and fourth, a combination is planned up to the largest micro-batch that fits (LargestBatch). Plans that do not
// depend on one another are asked for together. The result depends on the plans alone.
void search_plans(const SearchInput& input, Candidates& candidates);

// The candidates to show, as indices into Candidates::planned.
struct SearchFronts {
  std::vector<size_t> fitting;  // the Pareto front of those that fit, the fastest first
  std::vector<size_t> tight;    // that of those which are tight and which no fitting one beats
};

// Compares speed, device memory and host memory. Speeds are rounded to steps of 0.1 %. Memory that differs by less than
// 1 % of the capacity, or by less than 1 GiB where a host's capacity is not known, counts as equal.
SearchFronts search_fronts(const SearchInput& input, const Candidates& candidates);

}  // namespace fsdp::planner
