#include "planner/target/quantity.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

namespace fsdp::planner {
namespace {

using nlohmann::json;

constexpr double kKibi = 1024;

// A value in this unit is number * factor / divisor, so that all powers of ten are exact.
struct NamedUnit {
  const char* name;
  double factor;
  double divisor = 1;
};

const std::vector<NamedUnit>& units_of(Unit unit) {
  static const std::vector<NamedUnit> none = {};
  static const std::vector<NamedUnit> bytes = {{"TiB", kKibi * kKibi * kKibi * kKibi},
                                               {"GiB", kKibi * kKibi * kKibi},
                                               {"MiB", kKibi * kKibi},
                                               {"KiB", kKibi},
                                               {"TB", 1e12},
                                               {"GB", 1e9},
                                               {"MB", 1e6},
                                               {"kB", 1e3},
                                               {"KB", 1e3},
                                               {"B", 1}};
  static const std::vector<NamedUnit> bytes_per_second = {{"GB/s", 1e9},
                                                          {"TB/s", 1e12},
                                                          {"MB/s", 1e6},
                                                          {"kB/s", 1e3},
                                                          {"KB/s", 1e3},
                                                          {"GiB/s", kKibi * kKibi * kKibi},
                                                          {"MiB/s", kKibi * kKibi},
                                                          {"B/s", 1}};
  static const std::vector<NamedUnit> flops_per_second = {
      {"TFLOP/s", 1e12}, {"TFLOPS", 1e12}, {"PFLOP/s", 1e15}, {"GFLOP/s", 1e9}};
  static const std::vector<NamedUnit> seconds = {{"s", 1}, {"us", 1, 1e6}, {"ms", 1, 1e3}, {"ns", 1, 1e9}};
  switch (unit) {
    case Unit::kBytes:
      return bytes;
    case Unit::kBytesPerSecond:
      return bytes_per_second;
    case Unit::kFlopsPerSecond:
      return flops_per_second;
    case Unit::kSeconds:
      return seconds;
    case Unit::kNone:
      break;
  }
  return none;
}

std::string number_with_unit(double number, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.6g%s", number, unit);
  return text;
}

std::string names_of_units(Unit unit) {
  std::string names;
  for (const NamedUnit& known : units_of(unit)) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

// The bits that "Gbit/s", "Gbps" or "Gb" stand for, if it is a unit of bits.
std::optional<double> bits_of(std::string_view unit) {
  double factor = 1;
  constexpr std::string_view kPrefixes = "kMGT";
  if (!unit.empty() && kPrefixes.find(unit.front()) != std::string_view::npos) {
    factor = std::pow(1e3, static_cast<double>(kPrefixes.find(unit.front()) + 1));
    unit.remove_prefix(1);
  }
  for (const std::string_view bits : {"bit/s", "bits/s", "bit", "bits", "bps", "b/s", "b"}) {
    if (unit == bits) return factor;
  }
  return std::nullopt;
}

double in_whole_bytes(double value, Unit unit) { return unit == Unit::kBytes ? std::trunc(value) : value; }

Quantity read_quantity_text(const std::string& text, Unit unit) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc()) return {{}, "does not begin with a number"};
  std::string_view rest(end, static_cast<size_t>(last - end));
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  for (const NamedUnit& known : units_of(unit)) {
    if (rest == known.name) return {in_whole_bytes(number * known.factor / known.divisor, unit), ""};
  }
  if (const auto bits = bits_of(rest); bits && (unit == Unit::kBytes || unit == Unit::kBytesPerSecond)) {
    const bool per_second = unit == Unit::kBytesPerSecond;
    const char* const name = per_second ? "GB/s" : "GB";
    return {{}, "counts bits; it is \"" + number_with_unit(number * *bits / 8 / 1e9, name) + "\""};
  }
  return {{}, "has no known unit (" + names_of_units(unit) + ")"};
}

}  // namespace

Quantity quantity_of(const json& value, Unit unit) {
  if (value.is_number()) return {in_whole_bytes(value.get<double>(), unit), ""};
  if (unit == Unit::kNone || !value.is_string()) return {{}, "is not a number"};
  return read_quantity_text(value.get<std::string>(), unit);
}

json quantity_json(double value, Unit unit) {
  for (const NamedUnit& known : units_of(unit)) {
    const double number = value * known.divisor / known.factor;
    if (std::abs(number) < 1 || std::abs(number) >= 1e5) continue;
    std::string text = number_with_unit(number, known.name);
    if (*read_quantity_text(text, unit).value == value) return text;
  }
  const bool whole = std::trunc(value) == value && std::abs(value) < 1e15;
  return whole ? json(static_cast<int64_t>(value)) : json(value);
}

std::string accepted_quantity(Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return "a number of bytes, such as \"80GiB\"";
    case Unit::kBytesPerSecond:
      return "a number of bytes per second, such as \"50GB/s\"";
    case Unit::kFlopsPerSecond:
      return "a number of FLOPs per second, such as \"312TFLOP/s\"";
    case Unit::kSeconds:
      return "a number of seconds, such as \"5us\"";
    case Unit::kNone:
      break;
  }
  return "a number";
}

}  // namespace fsdp::planner
