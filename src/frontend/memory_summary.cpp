// ShardedModule::memory_summary.
#include <iomanip>
#include <sstream>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"

namespace fsdp {
namespace {

constexpr int kNameWidth = 24;
constexpr int kNumberWidth = 12;

void write_row(std::ostream& out, const std::string& name, int64_t current, int64_t peak, int64_t reserved) {
  auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  out << std::left << std::setw(kNameWidth) << name << std::right << std::fixed << std::setprecision(2);
  for (int64_t bytes : {current, peak, reserved}) {
    out << std::setw(kNumberWidth) << mebibytes(bytes);
  }
  out << "\n";
}

}  // namespace

std::vector<MemoryCategory> ShardedModule::memory() const { return engine().memory(); }

std::string ShardedModule::memory_summary(const std::vector<MemoryCategory>& more) const {
  std::vector<MemoryCategory> categories = memory();
  categories.insert(categories.end(), more.begin(), more.end());
  std::ostringstream out;
  out << std::left << std::setw(kNameWidth) << "rank " + std::to_string(engine().mesh().rank()) + ", MiB" << std::right;
  for (const char* column : {"current", "peak", "reserved"}) {
    out << std::setw(kNumberWidth) << column;
  }
  out << "\n";
  MemoryCategory sum{"together"};
  for (const MemoryCategory& category : categories) {
    write_row(out, category.name, category.current, category.peak, category.reserved);
    sum.current += category.current;
    sum.peak += category.peak;
    sum.reserved += category.reserved;
  }
  write_row(out, sum.name, sum.current, sum.peak, sum.reserved);
  return out.str();
}

}  // namespace fsdp
