// Reads the header of a safetensors file.
#include "formats/safetensors/safetensors_header.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes = fuzz::safetensors_file(fuzz::text_of(data, size));
  fuzz::check_reader(size, "x.safetensors", [&] {
    const auto header = formats::parse_safetensors_header(bytes, "x.safetensors");
    uint64_t covered = 0;
    for (const auto& entry : header.entries) {
      fuzz::require(entry.begin == covered, "tensors follow each other");
      fuzz::require(entry.end - entry.begin == static_cast<uint64_t>(entry.info.nbytes()), "shapes fit their bytes");
      covered = entry.end;
    }
    fuzz::require(header.data_start + covered == bytes.size(), "tensors take the whole file");
  });
  return 0;
}
