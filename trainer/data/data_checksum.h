// A checksum that detects whether a data set was replaced by another one with the same name.
#pragma once

#include <string>

#include "data/dataset.h"

namespace fsdp::trainer {

// Returns a checksum, 16 hexadecimal digits, of all tensors of up to 64 samples, which are spread evenly over the data
// set and include the first and the last sample. Changes of other samples are not detected.
std::string data_checksum(const Dataset& dataset);

}  // namespace fsdp::trainer
