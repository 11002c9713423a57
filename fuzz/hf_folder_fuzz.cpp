// Reads a Hugging Face folder. The input contains config.json, the index and two shards.
#include <ATen/ops/empty.h>

#include "formats/hugging_face/hf_folder.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  const auto files = fuzz::split_files(fuzz::text_of(data, size), 4);
  folder.write("config.json", files[0]);
  folder.write("model.safetensors.index.json", files[1]);
  folder.write("one.safetensors", fuzz::safetensors_file(files[2]));
  folder.write("two.safetensors", fuzz::safetensors_file(files[3]));
  fuzz::check_reader(size, folder.path().string(), [&] {
    const formats::HfFolder model(folder.path());
    for (const formats::TensorInfo& info : model.tensors()) {
      const at::Tensor values = at::empty({info.numel()}, at::TensorOptions(at::kFloat));
      model.read_range(info.name, 0, info.numel(), values);
      fuzz::require(model.find(info.name) != nullptr, "tensors are found by name");
    }
    model.check_tensors(model.tensors());
  });
  return 0;
}
