// model_resave FOLDER DTYPE TARGET MAX_SHARD_BYTES: loads the model of a Hugging Face folder in DTYPE (fp32, fp64 or
// bf16) and saves it, with the files of the tokenizer, as the folder TARGET. Experts are stored as in FOLDER.
#include <c10/util/Exception.h>

#include <cstdio>
#include <string>
#include <vector>

#include "formats/hugging_face/hf_folder.h"
#include "formats/hugging_face/hf_folder_writer.h"
#include "models/pretrained.h"
#include "tools/dtype_argument.h"
#include "tools/tool_main.h"

namespace {

void resave(const std::string& source, c10::ScalarType dtype, const std::string& target, int64_t max_shard_size) {
  const fsdp::formats::HfFolder folder(source);
  const auto model = fsdp::models::load_pretrained<fsdp::models::PretrainedModel>(folder, dtype, at::kCPU);
  const auto tensors = fsdp::models::checkpoint_tensors(*model);
  const auto experts = fsdp::models::PretrainedWeights(folder, *model).expert_tensors();
  fsdp::formats::HfFolderWriter writer(target, folder.config(), tensors, {max_shard_size, source, experts});
  const auto parameters = model->named_parameters(), buffers = model->named_buffers();
  for (const auto& tensor : tensors) {
    writer.write(tensor.name, parameters.contains(tensor.name) ? parameters[tensor.name] : buffers[tensor.name]);
  }
  writer.finish();
}

void run(const std::vector<std::string>& arguments) {
  TORCH_CHECK(arguments.size() == 4, "usage: model_resave FOLDER DTYPE TARGET MAX_SHARD_BYTES");
  resave(arguments[0], parse_dtype_argument(arguments[1]), arguments[2], std::stoll(arguments[3]));
}

}  // namespace

int main(int argc, char** argv) { fsdp::testing::tool_main(argc, argv, run); }
