#include "formats/torch_archive/torch_globals.h"

#include "formats/dcp/dcp_globals.h"

namespace fsdp::formats::torch_save {
namespace {

struct Storage {
  const char* name;  // in module torch
  c10::ScalarType dtype;
};

// Other dtypes are stored in untyped storages.
constexpr Storage kStorages[] = {{"DoubleStorage", c10::ScalarType::Double},
                                 {"FloatStorage", c10::ScalarType::Float},
                                 {"HalfStorage", c10::ScalarType::Half},
                                 {"BFloat16Storage", c10::ScalarType::BFloat16},
                                 {"LongStorage", c10::ScalarType::Long},
                                 {"IntStorage", c10::ScalarType::Int},
                                 {"ShortStorage", c10::ScalarType::Short},
                                 {"CharStorage", c10::ScalarType::Char},
                                 {"ByteStorage", c10::ScalarType::Byte},
                                 {"BoolStorage", c10::ScalarType::Bool},
                                 {"ComplexFloatStorage", c10::ScalarType::ComplexFloat},
                                 {"ComplexDoubleStorage", c10::ScalarType::ComplexDouble}};

PickleGlobals make_globals() {
  PickleGlobals globals;
  globals.persistent_ids = true;
  globals.classes.emplace("torch._utils", "_rebuild_tensor_v2");
  globals.classes.emplace("torch._utils", "_rebuild_tensor_v3");
  globals.classes.emplace("torch", "Size");
  globals.classes.emplace("collections", "OrderedDict");
  globals.constants.emplace("torch.storage", "UntypedStorage");
  for (const Storage& storage : kStorages) globals.constants.emplace("torch", storage.name);
  dcp::allow_dtypes(globals);
  return globals;
}

}  // namespace

const PickleGlobals& globals() {
  static const PickleGlobals globals = make_globals();
  return globals;
}

std::optional<c10::ScalarType> dtype_from_storage(std::string_view name) {
  for (const Storage& storage : kStorages) {
    if (name == std::string("torch.") + storage.name) return storage.dtype;
  }
  return std::nullopt;
}

std::optional<std::string> storage_name(c10::ScalarType dtype) {
  for (const Storage& storage : kStorages) {
    if (storage.dtype == dtype) return storage.name;
  }
  return std::nullopt;
}

}  // namespace fsdp::formats::torch_save
