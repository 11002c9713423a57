// The Python names in .metadata files of torch.distributed.checkpoint.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

#include "formats/pickle/pickle_reader.h"

namespace fsdp::formats::dcp {

constexpr const char* kMetadata = "torch.distributed.checkpoint.metadata.Metadata";
constexpr const char* kTensorStorageMetadata = "torch.distributed.checkpoint.metadata.TensorStorageMetadata";
constexpr const char* kBytesStorageMetadata = "torch.distributed.checkpoint.metadata.BytesStorageMetadata";
constexpr const char* kTensorProperties = "torch.distributed.checkpoint.metadata.TensorProperties";
constexpr const char* kChunkStorageMetadata = "torch.distributed.checkpoint.metadata.ChunkStorageMetadata";
constexpr const char* kMetadataIndex = "torch.distributed.checkpoint.metadata.MetadataIndex";
constexpr const char* kStorageInfo = "torch.distributed.checkpoint.filesystem._StorageInfo";
constexpr const char* kSize = "torch.Size";
constexpr const char* kGetLayout = "torch.serialization._get_layout";

// All names that a .metadata file may use.
const PickleGlobals& globals();

// Returns the dtype of a name like "torch.float32", or unset if the name is not a supported dtype.
std::optional<c10::ScalarType> dtype_from_global(std::string_view name);
// Returns the name of the dtype in module torch, like "float32". Throws for dtypes that are not supported.
std::string dtype_name(c10::ScalarType dtype);
// Allows a pickle to name dtypes.
void allow_dtypes(PickleGlobals& globals);

}  // namespace fsdp::formats::dcp
