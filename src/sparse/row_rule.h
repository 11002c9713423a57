// The rules by which rows of split embedding tables are updated.
#pragma once

#include <cstdint>

namespace fsdp::sparse {

enum class RowRule : uint8_t {
  kSgd,             // row -= learning_rate * g
  kRowWiseAdagrad,  // s += mean(g * g); row -= learning_rate * g / (sqrt(s) + eps), with one number s for each row
};

}  // namespace fsdp::sparse
