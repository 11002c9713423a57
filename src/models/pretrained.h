// Models and the folders that contain their weights.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/common/tensor_info.h"
#include "formats/hugging_face/expert_tensors.h"
#include "formats/hugging_face/hf_folder.h"
#include "formats/hugging_face/hf_folder_writer.h"
#include "models/causal_lm.h"
#include "models/image_classifier.h"
#include "models/pretrained_model.h"
#include "models/seq2seq_lm.h"
#include "models/tabular_model.h"

namespace fsdp::models {

// Returns name, dtype and shape of every parameter of a model and then of every buffer, each in module order, as a
// checkpoint of the model contains them: a parameter with several names (a tied head) once, under its first name.
// `dtype`: the dtype of floating-point tensors in the checkpoint, if it differs from the model's. Reads no parameter:
// it works on the meta device and does not gather a sharded model.
std::vector<formats::TensorInfo> checkpoint_tensors(const torch::nn::Module& model,
                                                    std::optional<c10::ScalarType> dtype = {});

// A folder's tensors under the names of a model's parameters and buffers.
class PretrainedWeights {
 public:
  // Throws unless the folder contains exactly the model's tensors, with the right shapes; the error lists missing,
  // misshapen and extra tensors. As in transformers, names may lack the prefix of the model without its head, some
  // tensors of old folders are ignored (PretrainedModel::folder_names), and experts may have tensors of their own
  // (formats/hugging_face/expert_tensors.h). A shared parameter may be stored under any of
  // its names ("lm_head.weight" instead of tied embeddings, or in addition to them), if all of them have the same
  // values. The model is used only in the constructor.
  PretrainedWeights(formats::HfFolder folder, const PretrainedModel& model);

  const formats::HfFolder& folder() const { return folder_; }
  // Copies elements [begin, end) of the flattened parameter or buffer into `out` (see SafetensorsFile::read_range).
  // `fqn`: for a shared parameter, its first name.
  void read_range(const std::string& fqn, int64_t begin, int64_t end, at::Tensor out) const;
  // How the folder holds experts: kFused only if it holds a tensor under the model's name that published folders
  // divide.
  formats::ExpertTensors expert_tensors() const { return expert_tensors_; }

 private:
  // Fills stored_names_ and stored_parts_ with the tensors that are not stored whole under their FQN.
  void find_stored_names(const PretrainedModel& model);
  // Notes that the folder has the parameter under this name, whole or in parts; returns false if it does not.
  bool find_stored(const std::string& fqn, const std::string& name, const formats::TensorInfo& info);
  void check_tensors(const PretrainedModel& model) const;
  void check_aliases(const torch::nn::Module& model) const;
  const std::string& stored_name(const std::string& fqn) const;

  formats::HfFolder folder_;
  std::unordered_map<std::string, std::string> stored_names_;  // by FQN, if the stored name differs
  std::unordered_map<std::string, std::vector<formats::FolderPart>> stored_parts_;  // by FQN, if it is stored in parts
  formats::ExpertTensors expert_tensors_ = formats::ExpertTensors::kSeparate;
};

// Loads the model of a folder with its weights, converted to `dtype`, unsharded on one device, in training mode. Model:
// CausalLM, Seq2SeqLM, ImageClassifier or TabularModel, for which a folder with a model of another kind is an error; or
// PretrainedModel, for any of them. A tabular model is returned without its embedding, whose rows are in separate files
// (sparse/row_files.h).
template <typename Model>
std::shared_ptr<Model> load_pretrained(const formats::HfFolder& folder, c10::ScalarType dtype, c10::Device device);

}  // namespace fsdp::models
