// Reads a checkpoint. The input contains the content of the manifest, and two files.
#include <ATen/ops/empty.h>

#include "formats/own/checkpoint_folder.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  const auto files = fuzz::split_files(fuzz::text_of(data, size), 3);
  folder.write(formats::kManifestName, fuzz::with_checksum(files[0]));
  folder.write("a.safetensors", files[1]);
  folder.write("b.safetensors", files[2]);
  fuzz::check_reader(size, folder.path().string(), [&] {
    const formats::CheckpointFolder saved(folder.path());
    for (const auto& [name, tensor] : saved.manifest().tensors) {
      const int64_t begin = tensor.numel() / 3, end = tensor.numel();
      saved.read(name, begin, end, at::empty({end - begin}, at::TensorOptions(tensor.dtype)));
    }
    saved.verify();
  });
  return 0;
}
