#include "comm/gloo/gloo_connection.h"

#include <c10/util/Exception.h>
#include <signal.h>

#include <mutex>
#include <string>

#include "comm/error_text.h"
#include "comm/meeting/group_store.h"
#include "comm/meeting/meeting_point_impl.h"

namespace fsdp::comm {
namespace {

void ignore_sigpipe() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
  });
}

// Tells the other ranks why this one does not connect, as far as the store can still be reached.
void leave(GroupStore& store, int rank, int size, const std::exception& error) {
  try {
    store.give_up(first_line(error));
    if (rank == 0) let_others_read(size);
  } catch (const std::exception&) {
    // The others run into their timeout.
  }
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect_gloo(const MeetingPoint& point,
                                                        const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                        int size, const GlooOptions& options) {
  ignore_sigpipe();
  const std::string host = options.host.empty() ? point.local_address() : options.host;
  auto settings = c10d::ProcessGroupGloo::Options::create(options.timeout);
  settings->threads = 1;
  const auto shared = c10::make_intrusive<GroupStore>(store, rank, size, point.name());
  try {
    settings->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(shared, rank, size, settings);
  } catch (const CommunicationError& error) {
    leave(*shared, rank, size, error);
    throw;
  } catch (const std::exception& error) {
    leave(*shared, rank, size, error);
    TORCH_CHECK_WITH(DistNetworkError, false, "rank ", rank, " of ", size, " cannot connect to the other ranks from ",
                     host, " (rendezvous at ", point.name(), "): ", first_line(error));
  }
}

}  // namespace fsdp::comm
