// Models and the folders that hold their weights.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/hf_folder.h"
#include "checkpoint/tensor_info.h"
#include "models/causal_lm.h"
#include "models/image_classifier.h"
#include "models/pretrained_model.h"
#include "models/seq2seq_lm.h"
#include "models/tabular_model.h"

namespace fsdp::models {

// Name, dtype and shape of every parameter of a model and then of every buffer, each in module order, as a checkpoint
// of it holds them: a parameter with several names (a tied head) once, under its first name. `dtype`: of what is
// floating point in the checkpoint, if not that of the model. Reads no parameter: works on the meta device, and gathers
// nothing when the model is sharded.
std::vector<checkpoint::TensorInfo> checkpoint_tensors(const torch::nn::Module& model,
                                                       std::optional<c10::ScalarType> dtype = {});

// A folder's tensors under the names of a model's parameters and buffers.
class PretrainedWeights {
 public:
  // Throws unless the folder holds exactly the model's tensors, with the right shapes; the error lists what is
  // missing, misshapen or extra. As in transformers, names may lack the prefix of the model without its head, and some
  // tensors of old folders are let be (PretrainedModel::folder_names). A shared parameter may be under any of its names
  // ("lm_head.weight" instead of tied embeddings, or beside them), if all hold the same values. Needs the model only
  // for this.
  PretrainedWeights(checkpoint::HfFolder folder, const PretrainedModel& model);

  const checkpoint::HfFolder& folder() const { return folder_; }
  // Copies elements [begin, end) of the flattened parameter or buffer into `out` (see SafetensorsFile::read_range).
  // `fqn`: of a shared parameter the first name.
  void read_range(const std::string& fqn, int64_t begin, int64_t end, at::Tensor out) const;

 private:
  // FQNs of tensors that are stored under another name.
  void find_stored_names(const PretrainedModel& model);
  void check_tensors(const PretrainedModel& model) const;
  void check_aliases(const torch::nn::Module& model) const;
  const std::string& stored_name(const std::string& fqn) const;

  checkpoint::HfFolder folder_;
  std::unordered_map<std::string, std::string> stored_names_;  // by FQN, where they differ
};

// The model of a folder with its weights, converted to `dtype`, whole on one device, in training mode. Model: CausalLM,
// Seq2SeqLM, ImageClassifier or TabularModel, of which a folder that holds another is an error; or PretrainedModel, for
// any of them. A tabular model comes without its embedding, whose rows are in files of their own (sparse/row_files.h).
template <typename Model>
std::shared_ptr<Model> load_pretrained(const checkpoint::HfFolder& folder, c10::ScalarType dtype, c10::Device device);

}  // namespace fsdp::models
