#include "formats/torch_archive/torch_archive.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "formats/common/crc32.h"
#include "formats/common/json_text.h"
#include "formats/pickle/plain_value.h"
#include "formats/torch_archive/torch_globals.h"

namespace fsdp::formats {
namespace {

constexpr uint64_t kMaxPickleBytes = uint64_t{1} << 28;

std::string prefix_of(const ZipArchive& zip) {
  FSDP_CHECK_WITH(FileError, !zip.records().empty(), zip.source(), ": the archive is empty");
  const std::string& first = zip.records().front().name;
  return first.substr(0, first.find('/') + 1);
}

const ZipRecord& pickle_of(const ZipArchive& zip, const std::string& prefix) {
  const ZipRecord* record = zip.find(prefix + "data.pkl");
  FSDP_CHECK_WITH(FileError, record != nullptr, zip.source(), ": holds no data.pkl: it was not written by torch.save");
  return *record;
}

PickleTree read_tree(const ZipArchive& zip, const std::string& prefix) {
  return read_pickle(zip.read(pickle_of(zip, prefix), kMaxPickleBytes), zip.source() + ": data.pkl",
                     torch_save::globals());
}

// Returns all elements of an array, in row-major order of their indices. `storage`: the elements of its storage.
at::Tensor in_order(const StoredArray& array, const at::Tensor& storage) {
  return storage.as_strided(array.sizes, array.strides, array.offset).contiguous();
}

}  // namespace

TorchArchive::TorchArchive(const InputFile& file, uint64_t offset, uint64_t length, const std::string& source)
    : zip_(file, offset, length, source), prefix_(prefix_of(zip_)), tree_(read_tree(zip_, prefix_)) {
  check_format();
}

std::string TorchArchive::read_text(const char* name, uint64_t max_bytes) const {
  const ZipRecord* record = zip_.find(prefix_ + name);
  return record == nullptr ? "" : zip_.read(*record, max_bytes);
}

void TorchArchive::check_format() const {
  const std::string order = read_text("byteorder", 16), version = read_text("version", 16);
  FSDP_CHECK_WITH(FileError, order.empty() || order == "little", zip_.source(), ": byte order ", quoted_name(order),
                  "; only \"little\" is supported");
  FSDP_CHECK_WITH(FileError, version == "2\n" || version == "3\n", zip_.source(), ": version ", quoted_name(version),
                  " of torch.save's archives; supported are 2 and 3");
}

nlohmann::json TorchArchive::plain_value() const {
  return formats::plain_value(value(), pickle_of(zip_, prefix_).bytes, zip_.source());
}

const ZipRecord& TorchArchive::storage(const StoredArray& array) const {
  const std::string name = prefix_ + "data/" + array.storage;
  const ZipRecord* record = zip_.find(name);
  FSDP_CHECK_WITH(FileError, record != nullptr, zip_.source(), ": holds no record ", quoted_name(name),
                  ", which holds the tensor's data");
  const auto size = static_cast<uint64_t>(c10::elementSize(array.dtype));
  FSDP_CHECK_WITH(FileError,
                  record->bytes / size == static_cast<uint64_t>(array.storage_numel) && record->bytes % size == 0,
                  zip_.source(), ": record ", quoted_name(name), " has ", record->bytes, " bytes, but its storage ",
                  array.storage_numel, " elements of ", size);
  return *record;
}

void TorchArchive::read(const StoredArray& array, int64_t begin, int64_t end, char* to, bool is_verified) const {
  const ZipRecord& record = storage(array);
  const auto size = static_cast<uint64_t>(c10::elementSize(array.dtype));
  const auto bytes = static_cast<uint64_t>(end - begin) * size;
  if (!is_verified) zip_.verify(record);
  if (array.is_row_major()) {
    zip_.file().read(record.offset + static_cast<uint64_t>(array.offset + begin) * size, to, bytes);
    return;
  }
  const at::NoGradGuard no_grad;
  // Kernels assume that bools are 0 or 1, but the file may contain any byte, so bools are copied as bytes.
  const auto dtype = array.dtype == c10::ScalarType::Bool ? c10::ScalarType::Byte : array.dtype;
  const at::Tensor whole = at::empty({array.storage_numel}, at::TensorOptions(dtype));
  zip_.file().read(record.offset, static_cast<char*>(whole.mutable_data_ptr()), record.bytes);
  const at::Tensor ordered = in_order(array, whole);
  std::memcpy(to, static_cast<const char*>(ordered.const_data_ptr()) + static_cast<uint64_t>(begin) * size, bytes);
}

}  // namespace fsdp::formats
