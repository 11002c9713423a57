// The names of dtypes in safetensors files and in Hugging Face configs.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::checkpoint {

// "F32", "BF16", … as safetensors spells them. Unset for names that are not supported.
std::optional<c10::ScalarType> dtype_from_safetensors(std::string_view name);
// An error for dtypes that are not supported.
std::string safetensors_dtype(c10::ScalarType dtype);
// The names that dtype_from_safetensors knows, for error messages.
std::string supported_safetensors_dtypes();

// "float32", "bfloat16", … as config.json spells them.
std::string hugging_face_dtype(c10::ScalarType dtype);

}  // namespace fsdp::checkpoint
