// Converts values of pickles to JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "formats/pickle/pickle_reader.h"

namespace fsdp::formats {

// Returns numbers, booleans, None, strings, and lists, tuples, torch.Size and dicts with string keys of them, as JSON.
// Anything else is an error, which begins with `source`. So is a value that takes much more memory than its pickle of
// `pickle_bytes` bytes, which can happen if parts are shared: JSON has a copy of them at each occurrence.
nlohmann::json plain_value(const PickleValue& value, uint64_t pickle_bytes, const std::string& source);

}  // namespace fsdp::formats
