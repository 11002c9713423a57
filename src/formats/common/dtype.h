// The names of dtypes in safetensors files and in Hugging Face configs.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats {

// Returns the dtype of a name as safetensors spells it ("F32", "BF16", …), or unset if the name is not supported.
std::optional<c10::ScalarType> dtype_from_safetensors(std::string_view name);
// Throws for dtypes that are not supported.
std::string safetensors_dtype(c10::ScalarType dtype);
// The names that dtype_from_safetensors knows, for error messages.
std::string supported_safetensors_dtypes();

// Returns the name of a dtype as config.json spells it ("float32", "bfloat16", …).
std::string hugging_face_dtype(c10::ScalarType dtype);

}  // namespace fsdp::formats
