// A communicator without any check of what ranks issue, as device backends are: ranks are threads, the k-th collective
// of each rank meets the k-th of the others, and what they send is mixed in silence, whatever it is.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "fsdp/communicator.h"

namespace fsdp::testing {

struct UncheckedOptions {
  // After this long a collective that does not end is an error, which names nobody.
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  bool has_meeting_point = true;
};

// Where the ranks of one group meet, and the memory through which they exchange.
class UncheckedHub;
std::shared_ptr<UncheckedHub> make_unchecked_hub(int size, const UncheckedOptions& options = {});
std::shared_ptr<Communicator> make_unchecked_communicator(const std::shared_ptr<UncheckedHub>& hub, int rank);

// run_ranks with such communicators.
void run_unchecked_ranks(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body,
                         const UncheckedOptions& options = {});

}  // namespace fsdp::testing
