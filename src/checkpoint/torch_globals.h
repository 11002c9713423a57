// The Python names in archives of torch.save.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/pickle_reader.h"

namespace fsdp::checkpoint::torch_save {

constexpr const char* kRebuildTensor = "torch._utils._rebuild_tensor_v2";
constexpr const char* kRebuildTensorOfDtype = "torch._utils._rebuild_tensor_v3";
constexpr const char* kUntypedStorage = "torch.storage.UntypedStorage";
constexpr const char* kSize = "torch.Size";

// All that an archive's data.pkl may name; persistent ids name its storages.
const PickleGlobals& globals();

// The dtype of a name like "torch.FloatStorage". Unset for names that are no storage of a dtype here.
std::optional<c10::ScalarType> dtype_from_storage(std::string_view name);
// "FloatStorage", in module torch. Unset for dtypes that have none.
std::optional<std::string> storage_name(c10::ScalarType dtype);

}  // namespace fsdp::checkpoint::torch_save
