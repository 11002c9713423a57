#include "engine/out_of_memory.h"

#include <c10/util/StringUtil.h>

#include <iomanip>
#include <mutex>
#include <sstream>

#include "base/error_message.h"
#include "base/out_of_memory.h"

namespace fsdp {
namespace {

constexpr int kNameWidth = 24;
constexpr int kNumberWidth = 12;
const char* const kHeading = "Memory held by the sharded modules";

void write_row(std::ostream& out, const std::string& name, int64_t current, int64_t peak, int64_t reserved) {
  auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  out << std::left << std::setw(kNameWidth) << name << std::right << std::fixed << std::setprecision(2);
  for (int64_t bytes : {current, peak, reserved}) {
    out << std::setw(kNumberWidth) << mebibytes(bytes);
  }
  out << "\n";
}

std::string gathered_units(Engine& engine) {
  std::string names;
  for (const auto& unit : engine.units()) {
    std::lock_guard lock(unit->mutex);
    if (unit->gathered() || unit->gathering()) {
      names += c10::str(names.empty() ? "'" : ", '", unit->name(), "'");
    }
  }
  return names.empty() ? "none" : names;
}

}  // namespace

std::string memory_table(int rank, const std::vector<MemoryCategory>& categories) {
  std::ostringstream out;
  out << std::left << std::setw(kNameWidth) << "rank " + std::to_string(rank) + ", MiB" << std::right;
  for (const char* column : {"current", "peak", "reserved"}) {
    out << std::setw(kNumberWidth) << column;
  }
  out << "\n";
  MemoryCategory sum{"total"};
  for (const MemoryCategory& category : categories) {
    write_row(out, category.name, category.current, category.peak, category.reserved);
    sum.current += category.current;
    sum.peak += category.peak;
    sum.reserved += category.reserved;
  }
  write_row(out, sum.name, sum.current, sum.peak, sum.reserved);
  return out.str();
}

std::string memory_report(Engine& engine, const std::vector<MemoryCategory>& more) {
  std::vector<MemoryCategory> categories = engine.memory();
  categories.insert(categories.end(), more.begin(), more.end());
  return c10::str(kHeading, " (activations and memory outside these categories are not included):\n",
                  memory_table(engine.mesh().rank(), categories), "gathered units: ", gathered_units(engine));
}

bool has_memory_report(const std::string& message) { return message.find(kHeading) != std::string::npos; }

void Engine::explain_out_of_memory(c10::Error& error, const std::string& doing) {
  if (is_out_of_memory(error) && !has_memory_report(message_of(error))) {
    error.add_context(c10::str("rank ", mesh().rank(), " ran out of memory: ", doing, "\n", memory_report(*this)));
  }
}

}  // namespace fsdp
