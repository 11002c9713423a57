#include "formats/dcp/dcp_globals.h"

#include <c10/util/Exception.h>

namespace fsdp::formats::dcp {
namespace {

struct Dtype {
  const char* name;  // in module torch
  c10::ScalarType dtype;
};

constexpr Dtype kDtypes[] = {{"float64", c10::ScalarType::Double},
                             {"float32", c10::ScalarType::Float},
                             {"float16", c10::ScalarType::Half},
                             {"bfloat16", c10::ScalarType::BFloat16},
                             {"int64", c10::ScalarType::Long},
                             {"int32", c10::ScalarType::Int},
                             {"int16", c10::ScalarType::Short},
                             {"int8", c10::ScalarType::Char},
                             {"uint64", c10::ScalarType::UInt64},
                             {"uint32", c10::ScalarType::UInt32},
                             {"uint16", c10::ScalarType::UInt16},
                             {"uint8", c10::ScalarType::Byte},
                             {"bool", c10::ScalarType::Bool},
                             {"complex32", c10::ScalarType::ComplexHalf},
                             {"complex64", c10::ScalarType::ComplexFloat},
                             {"complex128", c10::ScalarType::ComplexDouble},
                             {"float8_e4m3fn", c10::ScalarType::Float8_e4m3fn},
                             {"float8_e4m3fnuz", c10::ScalarType::Float8_e4m3fnuz},
                             {"float8_e5m2", c10::ScalarType::Float8_e5m2},
                             {"float8_e5m2fnuz", c10::ScalarType::Float8_e5m2fnuz},
                             {"float8_e8m0fnu", c10::ScalarType::Float8_e8m0fnu}};

PickleGlobals make_globals() {
  const std::string metadata = "torch.distributed.checkpoint.metadata";
  PickleGlobals globals;
  for (const char* name : {"Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties",
                           "ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"}) {
    globals.classes.emplace(metadata, name);
  }
  globals.enums.emplace(metadata, "_MEM_FORMAT_ENCODING");
  globals.classes.emplace("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  globals.classes.emplace("torch", "Size");
  globals.classes.emplace("torch.serialization", "_get_layout");
  for (const char* module : {"pathlib", "pathlib._local"}) {  // for the writer's checkpoint_id, which is not read
    globals.classes.emplace(module, "PosixPath");
    globals.classes.emplace(module, "WindowsPath");
  }
  allow_dtypes(globals);
  return globals;
}

}  // namespace

const PickleGlobals& globals() {
  static const PickleGlobals globals = make_globals();
  return globals;
}

std::optional<c10::ScalarType> dtype_from_global(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (name == std::string("torch.") + dtype.name) return dtype.dtype;
  }
  return std::nullopt;
}

std::string dtype_name(c10::ScalarType dtype) {
  for (const Dtype& known : kDtypes) {
    if (known.dtype == dtype) return known.name;
  }
  TORCH_CHECK(false, "dtype ", c10::toString(dtype),
              " cannot be stored in checkpoints of torch.distributed.checkpoint");
}

void allow_dtypes(PickleGlobals& globals) {
  for (const Dtype& dtype : kDtypes) globals.constants.emplace("torch", dtype.name);
}

}  // namespace fsdp::formats::dcp
