// model_forward FOLDER DTYPE INPUT OUTPUT [eval|fused]: runs the model of a Hugging Face folder on the tensors of the
// safetensors file INPUT, in training mode or, with "eval", in evaluation mode. Writes "loss", "logits", "grad.NAME"
// for every parameter and "buffer.NAME" for every buffer to the safetensors file OUTPUT. With "fused", a language model
// computes head and loss together, and OUTPUT has no logits. DTYPE is fp32, fp64 or bf16. For language models, INPUT
// contains "input_ids" (int64 [batch, sequence]), "labels" (optional, default: the input_ids), for causal models
// "document_ends" (optional: tokens with which documents end) and for sequence-to-sequence models "attention_mask"
// (optional). For image classifiers, INPUT contains "pixel_values" and
// "labels", and OUTPUT also contains "flops", the FLOPs for one image.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <string>
#include <vector>

#include "formats/hugging_face/hf_folder.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/safetensors_writer.h"
#include "models/pretrained.h"
#include "tools/dtype_argument.h"
#include "tools/tool_main.h"

namespace {

using fsdp::formats::SafetensorsFile;
using fsdp::formats::SafetensorsWriter;
using fsdp::formats::TensorInfo;
using fsdp::models::CausalLM;
using fsdp::models::ImageClassifier;
using fsdp::models::PretrainedModel;
using fsdp::models::Seq2SeqLM;
using Results = std::vector<std::pair<std::string, at::Tensor>>;

void write_results(const std::string& path, const Results& results) {
  std::vector<TensorInfo> layout;
  for (const auto& [name, tensor] : results) layout.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  SafetensorsWriter writer(path, layout);
  for (const auto& [name, tensor] : results) writer.write(name, tensor);
  writer.finish();
}

Results forward(ImageClassifier& model, const SafetensorsFile& inputs) {
  const at::Tensor images = inputs.tensor("pixel_values");
  const auto output = model.forward(images, inputs.tensor("labels"));
  const double flops = model.flops_per_image(images.size(2), images.size(3));
  return {{"loss", output.loss}, {"logits", output.logits}, {"flops", at::full({}, flops, at::kDouble)}};
}

Results forward(PretrainedModel& model, const SafetensorsFile& inputs) {
  if (auto* images = dynamic_cast<ImageClassifier*>(&model)) return forward(*images, inputs);
  const auto optional = [&](const char* name, const at::Tensor& otherwise) {
    return inputs.contains(name) ? inputs.tensor(name) : otherwise;
  };
  const at::Tensor input_ids = inputs.tensor("input_ids");
  const at::Tensor labels = optional("labels", input_ids);
  auto* causal = dynamic_cast<CausalLM*>(&model);
  if (causal && inputs.contains("document_ends")) {
    const at::Tensor ends = inputs.tensor("document_ends");
    causal->attend_by_document({ends.const_data_ptr<int64_t>(), ends.const_data_ptr<int64_t>() + ends.numel()});
  }
  const auto output = causal != nullptr ? causal->forward(input_ids, labels)
                                        : dynamic_cast<Seq2SeqLM&>(model).forward(
                                              input_ids, labels, optional("attention_mask", at::Tensor()));
  Results results = {{"loss", output.loss}};
  if (output.logits.defined()) results.emplace_back("logits", output.logits);
  return results;
}

Results run(PretrainedModel& model, const SafetensorsFile& inputs) {
  Results results = forward(model, inputs);
  results.front().second.backward();
  for (const auto& parameter : model.named_parameters()) {
    TORCH_CHECK(parameter.value().grad().defined(), parameter.key(), " has no gradient");
    results.emplace_back("grad." + parameter.key(), parameter.value().grad());
  }
  for (const auto& buffer : model.named_buffers()) results.emplace_back("buffer." + buffer.key(), buffer.value());
  return results;
}

void run_forward(const std::vector<std::string>& arguments) {
  const std::string mode = arguments.size() == 5 ? arguments[4] : "";
  TORCH_CHECK(arguments.size() == 4 || mode == "eval" || mode == "fused",
              "usage: model_forward FOLDER DTYPE INPUT OUTPUT [eval|fused]");
  const auto model = fsdp::models::load_pretrained<PretrainedModel>(fsdp::formats::HfFolder(arguments[0]),
                                                                    parse_dtype_argument(arguments[1]), at::kCPU);
  model->train(mode != "eval");
  if (mode == "fused") dynamic_cast<fsdp::models::LanguageModel&>(*model).set_fused_loss(true);
  write_results(arguments[3], run(*model, SafetensorsFile(arguments[2])));
}

}  // namespace

int main(int argc, char** argv) { fsdp::testing::tool_main(argc, argv, run_forward); }
