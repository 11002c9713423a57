// What config.json says about every image classifier.
#pragma once

#include <cstdint>

#include "models/config_reader.h"

namespace fsdp::models {

// The number of classes: entries of id2label, or num_labels, or as in transformers 2. At least 2; one label is a
// regression to transformers. Other problem types than single_label_classification and quantization are errors that
// name the key, its value and what is accepted.
int64_t parse_num_labels(const ConfigReader& config);

}  // namespace fsdp::models
