// safetensors_dump FILE: prints one line "NAME DTYPE [SHAPE] HASH" for each tensor, where HASH is the FNV-1a hash of
// its bytes. If the file is refused, prints the error and exits with status 1.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "formats/common/dtype.h"
#include "formats/safetensors/safetensors.h"

namespace {

uint64_t fnv1a(const at::Tensor& tensor) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

void dump(const fsdp::formats::SafetensorsFile& file) {
  for (const auto& info : file.tensors()) {
    const at::Tensor tensor = file.tensor(info.name);
    std::string shape;
    for (int64_t size : tensor.sizes()) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    std::printf("%s\t%s\t[%s]\t%016lx\n", info.name.c_str(),
                fsdp::formats::safetensors_dtype(tensor.scalar_type()).c_str(), shape.c_str(), fnv1a(tensor));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: safetensors_dump FILE\n");
    return 2;
  }
  try {
    dump(fsdp::formats::SafetensorsFile(argv[1]));
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "unexpected exception: %s\n", error.what());
    return 3;
  }
}
