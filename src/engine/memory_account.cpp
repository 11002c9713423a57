#include "engine/memory_account.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <functional>
#include <iomanip>
#include <sstream>

#include "base/allocated_memory.h"
#include "base/error_message.h"
#include "base/out_of_memory.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::engine {
namespace {

// Returns the memory of a group whose ranks read each other's gradients in place, or an empty source if there is none.
BufferPool::Source source_of_gradient_buffers(const EngineOptions& options) {
  for (const auto& group : {options.mesh.world, options.mesh.shard, options.mesh.replicate}) {
    if (group && group->memory_sharing().reads_in_place() && options.memory.compute_device().is_cpu()) {
      return [group](int64_t nbytes) { return group->memory_sharing().reduction_input(nbytes); };
    }
  }
  return {};
}

}  // namespace

MemoryAccount::MemoryAccount(const UnitContext& context, const UnitTree& tree)
    : context_(context),
      tree_(tree),
      parameters_(context.device(), context.options.keep_memory, base::AllocationPurpose::kUnshardedParameters),
      gradients_(context.device(), context.options.keep_memory, base::AllocationPurpose::kGradientBuffers,
                 source_of_gradient_buffers(context.options)) {}

// ---------------------------------------------------------------- arenas and shared memory

void MemoryAccount::reserve(int64_t parameters_nbytes, int64_t gradients_nbytes) {
  reserved_for_parameters_ = std::max(reserved_for_parameters_, parameters_nbytes);
  reserved_for_gradients_ = std::max(reserved_for_gradients_, gradients_nbytes);
  gradient_shards_nbytes();  // notes their peak, which is now
  parameters_.reserve(reserved_for_parameters_);
  gradients_.reserve(reserved_for_gradients_);
}

namespace {

// Returns how many bytes of a group's memory this rank needs in a step in addition to its shards: the gradients of the
// shards and, for two units at a time, its part of the gathered parameters and the gradient buffers.
int64_t step_nbytes(const std::vector<std::unique_ptr<Unit>>& units, const Communicator* group) {
  int64_t shards = 0;
  std::vector<int64_t> transient{0, 0};
  for (const auto& unit : units) {
    if (unit->groups().shard.get() != group) continue;
    int64_t unit_nbytes = 0;
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      const flat::FlatParameter& flat = *unit->flat_parameters()[i];
      if (flat.publishes()) unit_nbytes += static_cast<int64_t>(flat.shared_unsharded().nbytes()) / group->size();
      if (const FlatGradient* gradient = unit->gradients().of(i)) {
        unit_nbytes += gradient->buffer_nbytes();
        shards += flat.layout().shard_numel() * static_cast<int64_t>(c10::elementSize(flat.dtypes().gradient));
      }
    }
    transient.push_back(unit_nbytes);
  }
  std::partial_sort(transient.begin(), transient.begin() + 2, transient.end(), std::greater<>());
  return shards + transient[0] + transient[1];
}

}  // namespace

void MemoryAccount::share_shards() {
  std::vector<Communicator*> groups;
  for (const auto& unit : tree_.units()) {
    Communicator* group = unit->groups().shard.get();
    if (group && std::find(groups.begin(), groups.end(), group) == groups.end()) {
      groups.push_back(group);
      group->memory_sharing().share(step_nbytes(tree_.units(), group), {"shards", 0, Pass::kSetup});
    }
  }
}

// ---------------------------------------------------------------- categories

int64_t MemoryAccount::gradient_shards_nbytes() {
  int64_t nbytes = 0;
  for (const auto& unit : tree_.units()) {
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      const FlatGradient* gradient = unit->gradients().kept(i);
      nbytes += gradient ? gradient->leaves().memory_nbytes() : 0;
    }
  }
  int64_t peak = peak_gradient_shards_;
  while (nbytes > peak && !peak_gradient_shards_.compare_exchange_weak(peak, nbytes)) {
  }
  return nbytes;
}

std::vector<MemoryCategory> MemoryAccount::categories() {
  int64_t shards = 0, gradients = gradient_shards_nbytes();
  for (const auto& unit : tree_.units()) {
    for (const auto& flat : unit->flat_parameters()) shards += static_cast<int64_t>(flat->shard().nbytes());
  }
  const flat::ShardMemory& memory = context_.options.memory;
  return {
      {"parameter shards" + memory.where(), shards, shards, shards},
      {memory.apart() ? "gradient shards (host)" : "gradient shards", gradients, peak_gradient_shards_,
       peak_gradient_shards_},
      {"unsharded parameters", parameters_.in_use_bytes(), parameters_.peak_bytes(), parameters_.peak_reserved_bytes()},
      {"gradient buffers", gradients_.in_use_bytes(), gradients_.peak_bytes(), gradients_.peak_reserved_bytes()}};
}

// Optimizer state, and everything else in `more`, lies where shards lie. Gradients of shards never lie in files.
std::vector<std::pair<std::string, int64_t>> MemoryAccount::now(const std::vector<MemoryCategory>& more) {
  std::vector<MemoryCategory> categories = this->categories();
  const flat::ShardMemory& place = context_.options.memory;
  const int64_t shards = categories[0].current, gradients = categories[1].current;
  int64_t elsewhere = (place.apart() || place.files() ? shards : 0) + (place.apart() ? gradients : 0);
  for (const MemoryCategory& category : more) {
    categories.push_back(category);
    elsewhere += place.apart() || place.files() ? category.current : 0;
  }
  const int64_t in_pools = parameters_.reserved_bytes() + gradients_.reserved_bytes();
  categories.push_back({"buffers kept for reuse", in_pools - categories[2].current - categories[3].current});
  std::vector<std::pair<std::string, int64_t>> bytes;
  int64_t known = 0;
  for (const MemoryCategory& category : categories) {
    bytes.emplace_back(category.name, category.current);
    known += category.current;
  }
  if (const auto allocated = base::allocated_bytes(context_.device())) {
    bytes.emplace_back("everything else", std::max<int64_t>(0, *allocated - (known - elsewhere)));
  }
  return bytes;
}

// ---------------------------------------------------------------- reports

namespace {

constexpr int kNameWidth = 24;
constexpr int kNumberWidth = 12;
const char* const kHeading = "Memory held by the sharded modules";

void write_row(std::ostream& out, const std::string& name, int64_t current, int64_t peak, int64_t reserved) {
  auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  out << std::left << std::setw(kNameWidth) << name << std::right << std::fixed << std::setprecision(2);
  for (int64_t bytes : {current, peak, reserved}) out << std::setw(kNumberWidth) << mebibytes(bytes);
  out << "\n";
}

std::string gathered_units(const UnitTree& tree) {
  std::string names;
  for (const auto& unit : tree.units()) {
    base::MutexLock lock(unit->mutex);
    if (!unit->buffers.sharded()) names += c10::str(names.empty() ? "'" : ", '", unit->name(), "'");
  }
  return names.empty() ? "none" : names;
}

}  // namespace

std::string memory_table(int rank, const std::vector<MemoryCategory>& categories) {
  std::ostringstream out;
  out << std::left << std::setw(kNameWidth) << "rank " + std::to_string(rank) + ", MiB" << std::right;
  for (const char* column : {"current", "peak", "reserved"}) out << std::setw(kNumberWidth) << column;
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

std::string MemoryAccount::report(const std::vector<MemoryCategory>& more) {
  std::vector<MemoryCategory> all = categories();
  all.insert(all.end(), more.begin(), more.end());
  return c10::str(kHeading, " (activations and memory outside these categories are not included):\n",
                  memory_table(context_.options.mesh.world_rank(), all), "gathered units: ", gathered_units(tree_));
}

bool has_memory_report(const std::string& message) { return message.find(kHeading) != std::string::npos; }

void MemoryAccount::explain(c10::Error& error, const std::string& doing) {
  if (base::is_out_of_memory(error) && !has_memory_report(base::message_of(error))) {
    error.add_context(c10::str(context_.where(), " ran out of memory: ", doing, "\n", report()));
  }
}

}  // namespace fsdp::engine
