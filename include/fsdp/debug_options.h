// How ranks that diverge or do not arrive are detected.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace fsdp {

// When ranks compare the collectives that they issue.
enum class CollectiveCheckLevel : uint8_t {
  kOff,
  kSampled,  // in the first steps, then in every N-th one
  kAlways,
};
const char* to_string(CollectiveCheckLevel level);

// Each checked collective is accompanied by a fingerprint: kind, unit, pass, generation, step, sizes, dtypes. The ranks
// compare it before they trust the result. If one rank skips a collective, swaps it with another one (of equal shape,
// for example) or issues it with another size, all ranks stop with an error that names ranks and units.
//
// Gloo's collectives carry an identity that is always compared, at any level; for Gloo these fields add nothing and
// cost nothing. Other backends send fingerprints over Gloo connections of their own, which are made at the
// communicator's meeting_point(). For a backend without a meeting point, fully_shard throws unless the level is kOff.
//
// Steps are backward passes that reduce gradients, counted from 0 for all models over one communicator; a program
// without backward stays in step 0. Must be the same on all ranks. If the ranks disagree about the step, a checked
// collective is an error as soon as the other ranks issue a checked one; until then, the ranks that check wait, up to
// the timeout.
struct CollectiveCheck {
  CollectiveCheckLevel level = CollectiveCheckLevel::kSampled;
  int64_t first_steps = 3;  // kSampled: steps 0 … first_steps - 1 are checked
  int64_t every = 100;      // kSampled: and every step that is a multiple of this; 0: no others

  bool covers(int64_t step) const;
  bool operator==(const CollectiveCheck& other) const {
    return level == other.level && first_steps == other.first_steps && every == other.every;
  }
};

// Must be the same for all units of a tree and for all models over one communicator.
struct DebugOptions {
  CollectiveCheck collective_check{};

  // When a rank has waited this long for a collective, one of the waiting ranks reports which ranks are late, for which
  // collective, and what they did last, and later how it ended. Must be shorter than the communicator's timeout. Zero:
  // never. Unset: 30 seconds, or half of the timeout if that is less. One thread for each communicator and process
  // watches this rank's collectives and answers requests of other ranks.
  std::optional<std::chrono::milliseconds> watchdog_warning{};
  // Receives the lines of the watchdog, on its thread, as long as the communicator lives. Modules that are sharded over
  // the communicator keep it alive. Empty: stderr.
  std::function<void(const std::string& line)> log{};

  // Folder, created when needed, in which a rank whose collective fails writes its last collectives:
  // collectives_rank<R>.txt. The error names the file. Empty: none.
  std::string dump_folder{};

  // If ranks share memory, gathered parameters may lie in the memory of all ranks' shards. A write that bypasses
  // operators (through data_ptr) would then change the values that other ranks compute with. true: such memory is
  // read-only; such a write ends the process, with a line that names rank and unit. Unset: true if the library was
  // built for debugging (without NDEBUG). In any case, operators that write outside with_full_params write to copies.
  std::optional<bool> read_only_parameters{};
};

}  // namespace fsdp
