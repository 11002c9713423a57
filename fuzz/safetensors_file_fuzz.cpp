// Reads all tensors of a safetensors file on disk.
#include <ATen/ops/empty.h>

#include "formats/safetensors/safetensors.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  static const std::filesystem::path path = folder / "x.safetensors";
  folder.write("x.safetensors", fuzz::safetensors_file(fuzz::text_of(data, size)));
  fuzz::check_reader(size, path.string(), [&] {
    const formats::SafetensorsFile file(path);
    for (const formats::TensorInfo& info : file.tensors()) {
      const at::Tensor whole = file.tensor(info.name);
      fuzz::require(whole.sizes() == info.shape && whole.scalar_type() == info.dtype, "tensors are as described");
      const int64_t begin = info.numel() / 3, end = info.numel();
      const at::Tensor part = at::empty({end - begin}, at::TensorOptions(at::kDouble));
      file.read_range(info.name, begin, end, part);
    }
  });
  return 0;
}
