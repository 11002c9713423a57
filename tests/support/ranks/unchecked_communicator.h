// A communicator that does not check the collectives that ranks issue, as is the case for device backends. Ranks are
// threads; the k-th collective of each rank is matched with the k-th of the others, and their data is mixed without an
// error, whatever it is.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "fsdp/communicator.h"

namespace fsdp::testing {

struct UncheckedOptions {
  // The time after which an unfinished collective is an error; the error names no rank.
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  bool has_meeting_point = true;
};

// The meeting point of the ranks of one group, and the memory through which they exchange data.
class UncheckedHub;
std::shared_ptr<UncheckedHub> make_unchecked_hub(int size, const UncheckedOptions& options = {});
std::shared_ptr<Communicator> make_unchecked_communicator(const std::shared_ptr<UncheckedHub>& hub, int rank);

// Does the same as run_ranks, with unchecked communicators.
void run_unchecked_ranks(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body,
                         const UncheckedOptions& options = {});

}  // namespace fsdp::testing
