// Parameter groups of optimizers: LibTorch's options, which are numbers, and those of torch.optim in Python.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "convert/source.h"

namespace fsdp::convert {

// An option of torch.optim, in the order in which torch writes them; a list stands for a tuple.
using PythonOptions = std::vector<std::pair<std::string, nlohmann::json>>;

// For LibTorch's options of Adam(W), SGD, Adagrad and RMSprop (found out by their names). Options that only torch.optim
// has get its defaults, which a note says. Options of other optimizers go as they are. Both ways, Adam's amsgrad is off
// where it is missing, and decoupled_weight_decay is on (AdamW): torch before 2.7 did not write it; notes say so.
PythonOptions to_python(const nlohmann::json& options, Notes& notes);

// The reverse. Options that LibTorch's optimizers do not have are left out, which a note says unless they have torch's
// defaults.
nlohmann::json from_python(const std::map<std::string, nlohmann::json>& options, Notes& notes);

}  // namespace fsdp::convert
