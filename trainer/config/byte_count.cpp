#include "config/byte_count.h"

#include <charconv>
#include <string_view>
#include <utility>

namespace fsdp::trainer {

std::optional<int64_t> parse_byte_count(const std::string& text) {
  constexpr std::pair<const char*, int64_t> kUnits[] = {{"", 1},
                                                        {"kB", 1'000},
                                                        {"KB", 1'000},
                                                        {"MB", 1'000'000},
                                                        {"GB", 1'000'000'000},
                                                        {"TB", 1'000'000'000'000},
                                                        {"KiB", int64_t{1} << 10},
                                                        {"MiB", int64_t{1} << 20},
                                                        {"GiB", int64_t{1} << 30},
                                                        {"TiB", int64_t{1} << 40}};
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || count <= 0) return std::nullopt;
  for (const auto& [unit, bytes] : kUnits) {
    if (std::string_view(end, static_cast<size_t>(text.data() + text.size() - end)) == unit) {
      return __builtin_mul_overflow(count, bytes, &count) ? std::nullopt : std::optional(count);
    }
  }
  return std::nullopt;
}

}  // namespace fsdp::trainer
