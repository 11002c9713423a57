#include "convert/hf_source.h"

#include <algorithm>
#include <utility>

#include "convert/companions.h"

namespace fsdp::convert {
namespace {

namespace fs = std::filesystem;

// Whether a file contains rows of embedding tables (sparse/row_files.h), which are not tensors of the model.
bool is_of_rows(const std::string& name) { return name.starts_with("rows-") && name.ends_with(".safetensors"); }

// Notes the files of the folder that are neither read nor copied.
void note_other_files(const fs::path& folder, Notes& notes) {
  const auto copied = companions(folder);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_model =
        (entry.path().extension() == ".safetensors" && !is_of_rows(name)) || name == "model.safetensors.index.json";
    if (!is_model && std::find(copied.begin(), copied.end(), name) == copied.end()) {
      notes.push_back("left out: " + entry.path().string());
    }
  }
}

}  // namespace

HfSource::HfSource(const fs::path& folder, const SourceOptions& options, Notes& notes) : folder_(folder) {
  for (formats::ModelTensor& tensor : formats::model_tensors(folder_.config(), folder_.tensors(), folder.string())) {
    const formats::TensorInfo& info = tensor.info;
    const bool is_buffer = matches(info.name, options.buffers);
    contents_.tensors.push_back(
        {is_buffer ? StateTensor::Role::kBuffer : StateTensor::Role::kParameter, info.name, "", info});
    parts_.emplace(info.name, std::move(tensor.parts));
  }
  note_other_files(folder, notes);
}

void HfSource::read(const StateTensor& tensor, int64_t begin, int64_t end, const at::Tensor& out) {
  const auto read_part = [&](const formats::FolderPart& part, int64_t from, int64_t to) {
    folder_.read_range(part.info.name, from, to, out.narrow(0, part.begin + from - begin, to - from));
  };
  formats::for_each_part(parts_.at(tensor.info.name), begin, end, read_part);
}

}  // namespace fsdp::convert
