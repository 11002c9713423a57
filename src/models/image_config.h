// The part of config.json that all image classifiers share.
#pragma once

#include <cstdint>

#include "models/config_reader.h"

namespace fsdp::models {

// Returns the number of classes: the number of entries of id2label, or num_labels, or 2 as in transformers. It must be
// at least 2, because transformers treats one label as a regression. Problem types other than
// single_label_classification and quantization are errors that name the key, its value and the accepted values.
int64_t parse_num_labels(const ConfigReader& config);

}  // namespace fsdp::models
