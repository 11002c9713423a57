// The Python names in archives of torch.save.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

#include "formats/pickle/pickle_reader.h"

namespace fsdp::formats::torch_save {

constexpr const char* kRebuildTensor = "torch._utils._rebuild_tensor_v2";
constexpr const char* kRebuildTensorOfDtype = "torch._utils._rebuild_tensor_v3";
constexpr const char* kUntypedStorage = "torch.storage.UntypedStorage";
constexpr const char* kSize = "torch.Size";

// All names that an archive's data.pkl may use; persistent ids name its storages.
const PickleGlobals& globals();

// Returns the dtype of a name like "torch.FloatStorage", or unset if the name is not a storage of a supported dtype.
std::optional<c10::ScalarType> dtype_from_storage(std::string_view name);
// Returns the name of the dtype's storage in module torch, like "FloatStorage", or unset if the dtype has none.
std::optional<std::string> storage_name(c10::ScalarType dtype);

}  // namespace fsdp::formats::torch_save
