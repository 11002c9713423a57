// model_forward FOLDER DTYPE INPUT OUTPUT: runs a Hugging Face folder's model on the token ids in the
// safetensors file INPUT ("input_ids", int64 [batch, sequence]; "labels", optional, else the input_ids;
// "attention_mask", optional, of sequence-to-sequence models) and writes "loss", "logits" and "grad.NAME" for every
// parameter to the safetensors file OUTPUT. DTYPE is fp32, fp64 or bf16.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <string>
#include <vector>

#include "checkpoint/hf_folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "models/pretrained.h"
#include "tools/dtype_argument.h"

namespace {

using fsdp::checkpoint::SafetensorsFile;
using fsdp::checkpoint::SafetensorsWriter;
using fsdp::checkpoint::TensorInfo;

void write_results(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& results) {
  std::vector<TensorInfo> layout;
  for (const auto& [name, tensor] : results) {
    layout.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, layout);
  for (const auto& [name, tensor] : results) {
    writer.write(name, tensor);
  }
  writer.finish();
}

fsdp::models::LanguageModelOutput forward(fsdp::models::PretrainedModel& model, const SafetensorsFile& inputs) {
  const at::Tensor input_ids = inputs.tensor("input_ids");
  const at::Tensor labels = inputs.contains("labels") ? inputs.tensor("labels") : input_ids;
  if (auto* causal = dynamic_cast<fsdp::models::CausalLM*>(&model)) return causal->forward(input_ids, labels);
  const at::Tensor mask = inputs.contains("attention_mask") ? inputs.tensor("attention_mask") : at::Tensor();
  return dynamic_cast<fsdp::models::Seq2SeqLM&>(model).forward(input_ids, labels, mask);
}

void run_forward(const std::string& folder, const std::string& dtype, const std::string& input,
                 const std::string& output) {
  const auto model = fsdp::models::load_pretrained<fsdp::models::PretrainedModel>(
      fsdp::checkpoint::HfFolder(folder), parse_dtype_argument(dtype), at::kCPU);
  const auto result = forward(*model, SafetensorsFile(input));
  result.loss.backward();
  std::vector<std::pair<std::string, at::Tensor>> results{{"loss", result.loss}, {"logits", result.logits}};
  for (const auto& parameter : model->named_parameters()) {
    TORCH_CHECK(parameter.value().grad().defined(), parameter.key(), " has no gradient");
    results.emplace_back("grad." + parameter.key(), parameter.value().grad());
  }
  write_results(output, results);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    TORCH_CHECK(arguments.size() == 4, "usage: model_forward FOLDER DTYPE INPUT OUTPUT");
    run_forward(arguments[0], arguments[1], arguments[2], arguments[3]);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  }
}
