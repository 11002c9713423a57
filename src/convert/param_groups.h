// Converts parameter groups of optimizers between LibTorch's options, which are numbers, and those of torch.optim in
// Python.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "convert/source.h"

namespace fsdp::convert {

// Options of torch.optim, in the order in which torch writes them; a list represents a tuple.
using PythonOptions = std::vector<std::pair<std::string, nlohmann::json>>;

// Converts LibTorch's options of Adam(W), SGD, Adagrad and RMSprop (detected by their names). Options that only
// torch.optim has get its defaults, which is noted. Options of other optimizers are passed on unchanged. In both
// directions, a missing amsgrad of Adam means off, and a missing decoupled_weight_decay means on (AdamW), because torch
// before 2.7 did not write it; both are noted.
PythonOptions to_python(const nlohmann::json& options, Notes& notes);

// Converts in the other direction. Options that LibTorch's optimizers do not have are left out, which is noted unless
// they have torch's defaults.
nlohmann::json from_python(const std::map<std::string, nlohmann::json>& options, Notes& notes);

}  // namespace fsdp::convert
