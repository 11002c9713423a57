// A checksum that tells whether a data set is another one under the same name.
#pragma once

#include <string>

#include "data/dataset.h"

namespace fsdp::trainer {

// Of all that up to 64 samples hold, which are spread evenly over the data set, the first and the last among them: 16
// hexadecimal digits. Other samples may change without being seen.
std::string data_checksum(const Dataset& dataset);

}  // namespace fsdp::trainer
