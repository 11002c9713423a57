#include "formats/common/stored_array.h"

#include <c10/util/Exception.h>

#include <optional>

#include "formats/common/tensor_info.h"
#include "formats/dcp/dcp_fields.h"
#include "formats/dcp/dcp_globals.h"
#include "formats/torch_archive/torch_globals.h"

namespace fsdp::formats {
namespace {

using dcp::expect;
using dcp::expect_size;
using dcp::expect_text;
using dcp::Kind;
using dcp::parse_size_tuple;
using dcp::Place;

// Parses the id ("storage", type, name, device, number of elements); for an untyped storage the number counts bytes.
void parse_storage(const PickleValue& value, bool is_untyped, StoredArray& array, const Place& place) {
  const PickleValue& id = expect(value, Kind::kPersistentId, "the storage", "a persistent id", place);
  const auto& items = expect(*id.arguments, Kind::kTuple, "the storage's id", "a tuple", place).items;
  if (items.size() != 5 || expect_text(*items[0], "the storage's id", place) != "storage") {
    place.fail("the storage's id is not a tuple of \"storage\" and 4 more (byte ", value.offset, ")");
  }
  const std::string& type = expect(*items[1], Kind::kGlobal, "the storage's type", "a class", place).text;
  array.storage = expect_text(*items[2], "the storage's name", place);
  array.storage_numel = expect_size(*items[4], "the storage's size", place);
  if (is_untyped) {
    if (type != torch_save::kUntypedStorage) {
      place.fail("a tensor of dtype ", c10::toString(array.dtype), " in a storage of type ", type);
    }
    array.storage_numel /= static_cast<int64_t>(c10::elementSize(array.dtype));
  } else if (const auto dtype = torch_save::dtype_from_storage(type)) {
    array.dtype = *dtype;
  } else {
    place.fail(type, " is no storage of a known dtype");
  }
}

c10::ScalarType parse_dtype(const PickleValue& value, const Place& place) {
  const std::string& name = expect(value, Kind::kGlobal, "dtype", "a dtype", place).text;
  const auto dtype = dcp::dtype_from_global(name);
  if (!dtype) place.fail("dtype ", name, " is not a known dtype");
  return *dtype;
}

// Returns one more than the last element's position in the storage, or unset if that overflows.
std::optional<int64_t> end_of(const StoredArray& array) {
  int64_t end = array.offset;
  if (array.numel() == 0) return end;
  for (size_t i = 0; i < array.sizes.size(); ++i) {
    int64_t step = 0;
    if (__builtin_mul_overflow(array.sizes[i] - 1, array.strides[i], &step) ||
        __builtin_add_overflow(end, step, &end)) {
      return std::nullopt;
    }
  }
  return __builtin_add_overflow(end, int64_t{1}, &end) ? std::nullopt : std::optional(end);
}

void check_extent(const StoredArray& array, const Place& place) {
  const auto fail = [&](const char* why) {
    place.fail("sizes [", c10::Join(", ", array.sizes), "] with strides [", c10::Join(", ", array.strides),
               "] from element ", array.offset, " on ", why, ", which has ", array.storage_numel);
  };
  if (array.strides.size() != array.sizes.size() || !countable_nbytes(array.dtype, array.sizes)) {
    place.fail("sizes [", c10::Join(", ", array.sizes), "] with strides [", c10::Join(", ", array.strides),
               "] do not describe a tensor");
  }
  const auto end = end_of(array);
  if (!end || *end > array.storage_numel) fail("reach beyond the storage");
  if (array.numel() > array.storage_numel) fail("are more elements than in the storage");
}

}  // namespace

int64_t StoredArray::numel() const { return TensorInfo{"", dtype, sizes}.numel(); }

bool StoredArray::is_row_major() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

StoredArray parse_array(const PickleValue& value, const std::string& source) {
  const Place place{source};
  const bool of_dtype = value.kind == Kind::kObject && value.text == torch_save::kRebuildTensorOfDtype;
  if (!of_dtype) dcp::expect_class(value, torch_save::kRebuildTensor, "the value", place);
  // The arguments are storage, offset, sizes, strides, requires_grad, hooks, and the dtype of an untyped storage.
  const auto& arguments = value.arguments->items;
  if (arguments.size() != (of_dtype ? 7 : 6) || value.state != nullptr) {
    place.fail("a tensor is made from ", arguments.size(), " values (byte ", value.offset, ")");
  }
  StoredArray array;
  if (of_dtype) array.dtype = parse_dtype(*arguments[6], place);
  parse_storage(*arguments[0], of_dtype, array, place);
  array.offset = expect_size(*arguments[1], "the offset in the storage", place);
  array.sizes = parse_size_tuple(*arguments[2], "sizes", place);
  array.strides = parse_size_tuple(*arguments[3], "strides", place);
  check_extent(array, place);
  return array;
}

}  // namespace fsdp::formats
