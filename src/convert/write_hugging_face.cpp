
#include "base/check.h"
#include "convert/slices.h"
#include "convert/targets.h"
#include "formats/common/json_text.h"
#include "formats/hugging_face/hf_folder_writer.h"

namespace fsdp::convert {
namespace {

namespace fs = std::filesystem;
using formats::TensorInfo;
using Role = StateTensor::Role;

fs::path config_of(const Job& job) {
  const fs::path config = job.options.config.empty() ? job.companions / "config.json" : job.options.config;
  FSDP_CHECK_WITH(FileError, fs::exists(config), config.string(),
                  ": does not exist, but a Hugging Face folder needs a config.json: name one with --config");
  return config;
}

std::vector<TensorInfo> layout_of(const Contents& contents) {
  std::vector<TensorInfo> layout;
  for (const StateTensor& tensor : contents.tensors) {
    if (tensor.role != Role::kOptimizer) layout.push_back({tensor.fqn, tensor.info.dtype, tensor.info.shape});
  }
  return layout;
}

void note_left_out(const Contents& contents, Notes& notes) {
  if (contents.has_optimizer()) {
    notes.push_back("left out: the optimizer's state, which Hugging Face folders cannot hold");
  }
  if (!contents.user.is_null()) {
    notes.push_back("left out: the caller's data (user), which Hugging Face folders cannot hold");
  }
}

}  // namespace

void write_hugging_face(const Job& job) {
  const Contents& contents = job.source.contents();
  const fs::path config = config_of(job);
  const fs::path beside = config.has_parent_path() ? config.parent_path() : fs::path(".");
  formats::HfFolderWriter writer(job.target, formats::read_json_file(config), layout_of(contents),
                                 {.max_shard_size = job.options.max_file_bytes, .tokenizer_source = beside});
  for (const StateTensor& tensor : contents.tensors) {
    if (tensor.role != Role::kOptimizer) {
      copy_tensor(job.source, tensor, job.result, [&](const at::Tensor& slice) { writer.append(tensor.fqn, slice); });
    }
  }
  writer.finish();
  note_left_out(contents, job.result.notes);
}

}  // namespace fsdp::convert
