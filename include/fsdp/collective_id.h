// The identity by which ranks recognise a collective.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/pass.h"

namespace fsdp {

// The purpose of a collective. Ranks compare all fields before they trust the data that they receive.
struct CollectiveId {
  std::string name;         // unit name, or the purpose ("clip_grad_norm_")
  uint64_t generation = 0;  // number of earlier collectives with this name and pass
  Pass pass = Pass::kUser;
};

}  // namespace fsdp
