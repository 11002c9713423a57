// Reads the .metadata file of torch.distributed.checkpoint.
#include "formats/dcp/dcp_metadata.h"
#include "reader_check.h"

using namespace fsdp;

namespace {

void check_location(const formats::DcpLocation& location) {
  const std::filesystem::path path(location.path);
  fuzz::require(path.is_relative() && path.lexically_normal() == path, "paths stay in the folder");
  fuzz::require(location.offset >= 0 && location.length >= 0 && location.offset + location.length >= 0,
                "places in files are numbers");
}

void check_tensor(const formats::DcpTensor& tensor) {
  int64_t covered = 0;
  for (const formats::DcpChunk& chunk : tensor.chunks) {
    check_location(chunk.location);
    covered += formats::TensorInfo{"", tensor.info.dtype, chunk.sizes}.numel();
  }
  fuzz::require(covered == tensor.info.numel(), "chunks have as many elements as the tensor");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::check_reader(size, ".metadata: ", [&] {
    const auto metadata = formats::parse_dcp_metadata(fuzz::text_of(data, size), ".metadata");
    for (const auto& [name, tensor] : metadata.tensors) check_tensor(tensor);
    for (const auto& [name, location] : metadata.bytes) check_location(location);
  });
  return 0;
}
