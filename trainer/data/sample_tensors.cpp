#include "data/sample_tensors.h"

#include <c10/util/StringUtil.h>

#include "base/check.h"

namespace fsdp::trainer {

at::Tensor tensor_in(const formats::SafetensorsFile& file, const std::string& name, const std::string& expected) {
  FSDP_CHECK_WITH(FileError, file.contains(name), file.path().string(), ": has no tensor \"", name, "\"; it must be ",
                  expected);
  return file.tensor(name);
}

at::Tensor labels_in(const formats::SafetensorsFile& file, int64_t samples, int64_t classes) {
  const std::string expected = c10::str("[", samples, "], of integers");
  const at::Tensor labels = tensor_in(file, "labels", expected);
  FSDP_CHECK_WITH(FileError,
                  labels.dim() == 1 && labels.size(0) == samples && c10::isIntegralType(labels.scalar_type(), false),
                  file.path().string(), ": tensor \"labels\" is ", labels.sizes(), " of ", labels.scalar_type(),
                  "; it must be ", expected);
  const at::Tensor all = labels.to(at::kLong);
  const auto* values = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < samples; ++i) {
    FSDP_CHECK_WITH(FileError, values[i] >= 0 && values[i] < classes, file.path().string(), ": label ", values[i],
                    " of sample ", i, " is none of the model's classes, 0 to ", classes - 1);
  }
  return labels;
}

}  // namespace fsdp::trainer
