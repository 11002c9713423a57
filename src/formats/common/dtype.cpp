#include "formats/common/dtype.h"

#include <c10/util/Exception.h>

#include <array>

namespace fsdp::formats {
namespace {

struct DtypeNames {
  c10::ScalarType dtype;
  const char* safetensors;
  const char* hugging_face;
};

constexpr std::array<DtypeNames, 10> kDtypes{{{c10::ScalarType::Double, "F64", "float64"},
                                              {c10::ScalarType::Float, "F32", "float32"},
                                              {c10::ScalarType::Half, "F16", "float16"},
                                              {c10::ScalarType::BFloat16, "BF16", "bfloat16"},
                                              {c10::ScalarType::Long, "I64", "int64"},
                                              {c10::ScalarType::Int, "I32", "int32"},
                                              {c10::ScalarType::Short, "I16", "int16"},
                                              {c10::ScalarType::Char, "I8", "int8"},
                                              {c10::ScalarType::Byte, "U8", "uint8"},
                                              {c10::ScalarType::Bool, "BOOL", "bool"}}};

const DtypeNames& names_of(c10::ScalarType dtype) {
  for (const DtypeNames& names : kDtypes) {
    if (names.dtype == dtype) return names;
  }
  TORCH_CHECK(false, "dtype ", c10::toString(dtype), " cannot be stored in safetensors files here; supported are ",
              supported_safetensors_dtypes());
}

}  // namespace

std::optional<c10::ScalarType> dtype_from_safetensors(std::string_view name) {
  for (const DtypeNames& names : kDtypes) {
    if (name == names.safetensors) return names.dtype;
  }
  return std::nullopt;
}

std::string safetensors_dtype(c10::ScalarType dtype) { return names_of(dtype).safetensors; }

std::string supported_safetensors_dtypes() {
  std::string list;
  for (const DtypeNames& names : kDtypes) list += (list.empty() ? "" : ", ") + std::string(names.safetensors);
  return list;
}

std::string hugging_face_dtype(c10::ScalarType dtype) { return names_of(dtype).hugging_face; }

}  // namespace fsdp::formats
