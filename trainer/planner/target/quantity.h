// Numbers with units as people write them in JSON: 5e-6 or "5us", 50000000000 or "50GB/s".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace fsdp::planner {

enum class Unit : uint8_t { kNone, kBytes, kBytesPerSecond, kFlopsPerSecond, kSeconds };

struct Quantity {
  std::optional<double> value;  // in the unit itself: bytes, seconds, …
  std::string complaint;        // why there is no value: "counts bits; …"
};

// Reads a number, or a text of a number and a unit. Bytes are whole: a fraction is dropped. Units of bits are refused.
Quantity quantity_of(const nlohmann::json& value, Unit unit);

// Returns a text with a unit if it stands for exactly this value in few digits, otherwise the number.
nlohmann::json quantity_json(double value, Unit unit);

// Returns the accepted values in words: "a number of bytes, such as \"80GiB\"".
std::string accepted_quantity(Unit unit);

}  // namespace fsdp::planner
