// Models and the folders that hold their weights.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/hf_folder.h"
#include "checkpoint/tensor_info.h"
#include "models/causal_lm.h"

namespace fsdp::models {

// Name, dtype and shape of every parameter of a model, in module order, as a checkpoint of it holds them: a
// parameter with several names (a tied head) once, under its first name. `dtype`: of the checkpoint, if not
// that of the parameters. Reads no parameter: works on the meta device, and gathers nothing when the model is
// sharded.
std::vector<checkpoint::TensorInfo> checkpoint_tensors(const torch::nn::Module& model,
                                                       std::optional<c10::ScalarType> dtype = {});

// Throws unless the folder holds exactly the model's tensors, with the right shapes; the error lists what is
// missing, misshapen or extra. As in transformers, buffers "…rotary_emb.inv_freq" of old folders are let be;
// so are further names of a shared parameter ("lm_head.weight" beside tied embeddings), if they hold the same
// values.
void check_pretrained(const checkpoint::HfFolder& folder, const torch::nn::Module& model);

// The model of a folder with its weights, converted to `dtype`, whole on one device, in training mode.
std::shared_ptr<CausalLM> load_causal_lm(const checkpoint::HfFolder& folder, c10::ScalarType dtype, c10::Device device);

}  // namespace fsdp::models
