// For tests: kernels of plans and operators of runs in the same form.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "planner/tape/product_work.h"

namespace fsdp::planner {

// `work`: null for an operator that is no product.
inline nlohmann::json kernel_json(const std::string& name, int64_t bytes, const ProductWork* work) {
  nlohmann::json kernel = {{"name", name}, {"bytes", bytes}};
  if (work != nullptr) kernel["sizes"] = {work->batch, work->m, work->n, work->k, work->across_rows, work->flops};
  return kernel;
}

}  // namespace fsdp::planner
