// Values of pickles as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/pickle_reader.h"

namespace fsdp::checkpoint {

// Numbers, truth values, None, strings, and lists, tuples, torch.Size and dicts with string keys of them, as JSON. An
// error, which begins with `source`, for anything else, and for a value that takes much more memory than its pickle of
// `pickle_bytes`, as one may whose parts are shared: JSON has a copy wherever they stand.
nlohmann::json plain_value(const PickleValue& value, uint64_t pickle_bytes, const std::string& source);

}  // namespace fsdp::checkpoint
