// Tensors of a file of samples: one for what a model reads, one for what it is to say.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "checkpoint/safetensors.h"

namespace fsdp::trainer {

// An error that names file and tensor and says what it must be (`expected`) when the file has none of that name.
at::Tensor tensor_in(const checkpoint::SafetensorsFile& file, const std::string& name, const std::string& expected);

// The tensor "labels": [samples], integers from 0 to classes - 1. Errors name the file, and the sample.
at::Tensor labels_in(const checkpoint::SafetensorsFile& file, int64_t samples, int64_t classes);

}  // namespace fsdp::trainer
