// Tensors of a file of samples: the inputs and the labels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "formats/safetensors/safetensors.h"

namespace fsdp::trainer {

// Returns the tensor `name`. If the file has no such tensor, throws an error that names file and tensor and says what
// the tensor must be (`expected`).
at::Tensor tensor_in(const formats::SafetensorsFile& file, const std::string& name, const std::string& expected);

// Returns the tensor "labels": [samples], integers from 0 to classes - 1. Errors name the file and the sample.
at::Tensor labels_in(const formats::SafetensorsFile& file, int64_t samples, int64_t classes);

}  // namespace fsdp::trainer
