#include "formats/torch_archive/torch_archive_writer.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "formats/dcp/dcp_globals.h"
#include "formats/pickle/pickle_writer.h"
#include "formats/torch_archive/torch_globals.h"

namespace fsdp::formats {
namespace {

using namespace pickled;

const std::string kPrefix = "archive/";

std::string integers(c10::ArrayRef<int64_t> values) {
  std::vector<std::string> items;
  std::transform(values.begin(), values.end(), std::back_inserter(items), integer);
  return tuple(items);
}

// Dtypes without a storage type of their own are stored in untyped storages, whose sizes are in bytes.
std::string tensor_opcodes(const TensorInfo& info) {
  const auto type = torch_save::storage_name(info.dtype);
  const std::string storage =
      persistent_id(tuple({text("storage"), type ? name("torch", *type) : name("torch.storage", "UntypedStorage"),
                           text("0"), text("cpu"), integer(type ? info.numel() : info.nbytes())}));
  std::vector<std::string> arguments{storage,
                                     integer(0),
                                     integers(info.shape),
                                     integers(c10::contiguous_strides(info.shape)),
                                     boolean(false),
                                     call(name("collections", "OrderedDict"), {})};
  if (!type) arguments.push_back(name("torch", dcp::dtype_name(info.dtype)));
  return call(name("torch._utils", type ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3"), arguments);
}

void begin_archive(ZipWriter& zip, const std::string& opcodes) {
  zip.add(kPrefix + "data.pkl", file(opcodes));
  zip.add(kPrefix + "byteorder", "little");
}

uint64_t end_archive(ZipWriter& zip) {
  zip.add(kPrefix + "version", "3\n");
  return zip.finish();
}

}  // namespace

TorchArchiveWriter::TorchArchiveWriter(OutputFile& file, uint64_t offset, const TensorInfo& info) : zip_(file, offset) {
  begin_archive(zip_, tensor_opcodes(info));
  zip_.begin(kPrefix + "data/0");
}

uint64_t TorchArchiveWriter::finish() { return end_archive(zip_); }

uint64_t write_value_archive(OutputFile& file, uint64_t offset, const std::string& opcodes) {
  ZipWriter zip(file, offset);
  begin_archive(zip, opcodes);
  return end_archive(zip);
}

}  // namespace fsdp::formats
