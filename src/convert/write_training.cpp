#include "convert/companions.h"
#include "convert/slices.h"
#include "convert/targets.h"
#include "formats/common/tensor_names.h"
#include "formats/own/checkpoint_folder_writer.h"
#include "formats/own/run_state.h"

namespace fsdp::convert {
namespace {

using formats::TensorInfo;
using Role = StateTensor::Role;

std::string name_of(const StateTensor& tensor) {
  switch (tensor.role) {
    case Role::kParameter:
      return formats::model_name(tensor.fqn);
    case Role::kBuffer:
      return formats::buffer_name(tensor.fqn);
    case Role::kOptimizer:
      return formats::optimizer_name(tensor.fqn, tensor.state);
  }
  return "";
}

std::vector<TensorInfo> layout_of(const Contents& contents) {
  std::vector<TensorInfo> layout;
  for (const StateTensor& tensor : contents.tensors) {
    layout.push_back({name_of(tensor), tensor.info.dtype, tensor.info.shape});
  }
  return layout;
}

}  // namespace

void write_training(const Job& job) {
  const Contents& contents = job.source.contents();
  formats::CheckpointFolderWriter writer(job.target, layout_of(contents), job.options.max_file_bytes);
  for (const StateTensor& tensor : contents.tensors) {
    const std::string name = name_of(tensor);
    copy_tensor(job.source, tensor, job.result, [&](const at::Tensor& slice) { writer.append(name, slice); });
  }
  copy_companions(job.companions, writer.folder());
  writer.finish(formats::run_state(contents.leaves, contents.groups, contents.user));
}

}  // namespace fsdp::convert
