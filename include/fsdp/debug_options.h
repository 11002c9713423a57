// How ranks that diverge, or do not come, are found.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace fsdp {

// When ranks compare what they issue.
enum class CollectiveCheckLevel : uint8_t {
  kOff,
  kSampled,  // in the first steps, then in every N-th one
  kAlways,
};
const char* to_string(CollectiveCheckLevel level);

// With each checked collective travels a fingerprint of it: kind, unit, pass, generation, step, sizes, dtypes. It is
// compared before the result is trusted, so that a collective that one rank skips, swaps with another one (of equal
// shape, say) or issues with another size stops all ranks with an error that names ranks and units.
//
// Gloo's collectives carry an identity anyway, which is compared always, whatever the level: there these fields add
// nothing and cost nothing. Other backends send fingerprints over Gloo connections of their own, made at the
// communicator's meeting_point(); a backend without one is an error of fully_shard unless the level is kOff.
//
// Steps are backward passes that reduce gradients, counted from 0 for all models over one communicator; a program
// without backward stays in step 0. Must be the same on all ranks. Where the steps of ranks differ, a checked
// collective is an error as soon as the others come to one; until then those that check wait, up to the timeout.
struct CollectiveCheck {
  CollectiveCheckLevel level = CollectiveCheckLevel::kSampled;
  int64_t first_steps = 3;  // kSampled: steps 0 … first_steps - 1 are checked
  int64_t every = 100;      // kSampled: and every step that is a multiple of this; 0: none of them

  bool covers(int64_t step) const;
  bool operator==(const CollectiveCheck&) const = default;
};

// Must be the same for all units of a tree and for all models over one communicator.
struct DebugOptions {
  CollectiveCheck collective_check{};

  // When a collective has been waited for this long, one of the ranks that wait says which ranks are late, for which
  // collective, and what they did last, and later how it ended. Must be shorter than the communicator's timeout. Zero:
  // never. Unset: 30 seconds, or half of the timeout if that is less. A thread for each communicator and process looks
  // at this rank's collectives, and answers other ranks that ask.
  std::optional<std::chrono::milliseconds> watchdog_warning{};
  // Receives these lines, on the watchdog's thread, as long as the communicator lives; modules that are sharded over it
  // keep it alive. Empty: stderr.
  std::function<void(const std::string& line)> log{};

  // Folder, made when needed, in which a rank whose collective fails leaves its last ones:
  // collectives_rank<R>.txt. The error names the file. Empty: none.
  std::string dump_folder{};

  // Where ranks share memory, gathered parameters may lie where the shards of all ranks do. A write to them that no
  // operator makes (through data_ptr) would change what the others compute with. With this on they can only be read
  // there: such a write ends the process, with a line that names rank and unit. Unset: on where the library was built
  // for debugging (without NDEBUG). Operators that write outside with_full_params are an error in any case.
  std::optional<bool> read_only_parameters{};
};

}  // namespace fsdp
