// Parses the dtype argument of the tools.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>

inline c10::ScalarType parse_dtype_argument(const std::string& name) {
  if (name == "fp32") return c10::ScalarType::Float;
  if (name == "fp64") return c10::ScalarType::Double;
  TORCH_CHECK(name == "bf16", "DTYPE must be fp32, fp64 or bf16, not ", name);
  return c10::ScalarType::BFloat16;
}
