#include "comm/checked/collective_monitor.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

namespace fsdp::comm {
namespace {

constexpr auto kDefaultWarning = std::chrono::milliseconds(30'000);

std::chrono::milliseconds warning_of(const DebugOptions& options, const Communicator& communicator,
                                     const std::string& group) {
  const std::chrono::milliseconds timeout = communicator.timeout();
  const bool limited = timeout.count() > 0;
  if (!options.watchdog_warning) return limited ? std::min(kDefaultWarning, timeout / 2) : kDefaultWarning;
  TORCH_CHECK(options.watchdog_warning->count() >= 0, "fsdp: watchdog_warning of ", options.watchdog_warning->count(),
              " ms must not be negative; zero turns the watchdog off");
  TORCH_CHECK(!limited || *options.watchdog_warning < timeout, "fsdp: watchdog_warning of ",
              options.watchdog_warning->count(), " ms is not shorter than the timeout of group '", group, "', ",
              timeout.count(),
              " ms: the watchdog would never print its warning; lower it, or set it to zero to turn the watchdog off");
  return *options.watchdog_warning;
}

}  // namespace

CollectiveMonitor::CollectiveMonitor(int rank, DebugOptions options)
    : options_(std::move(options)), record_(std::make_shared<FlightRecord>(rank)), watchdog_(record_, options_.log) {
  TORCH_CHECK(options_.collective_check.first_steps >= 0 && options_.collective_check.every >= 0,
              "fsdp: collective_check: first_steps=", options_.collective_check.first_steps,
              " and every=", options_.collective_check.every, " must not be negative");
}

int CollectiveMonitor::add_group(const std::shared_ptr<Communicator>& group_of_ranks, const std::string& name) {
  const Communicator& communicator = *group_of_ranks;
  const std::chrono::milliseconds warning = warning_of(options_, communicator, name);
  const int group = record_->add_group(name);
  groups_.push_back(group_of_ranks);
  if (communicator.size() > 1 && warning.count() > 0) {
    std::vector<int> names;
    for (int rank = 0; rank < communicator.size(); ++rank) names.push_back(communicator.world_rank(rank));
    watchdog_.watch({group, communicator.rank(), std::move(names), communicator.meeting_point(), warning});
  }
  return group;
}

int CollectiveMonitor::add_channel(const Communicator& communicator, int from, int to, const std::string& group) {
  const std::chrono::milliseconds warning = warning_of(options_, communicator, group);
  const std::vector<int> names{communicator.world_rank(from), communicator.world_rank(to)};
  const std::string messages = c10::str("messages from rank ", names[0], " to rank ", names[1]);
  const int channel = record_->add_group(c10::str(group, ", ", messages));
  if (warning.count() > 0) {
    const std::shared_ptr<MeetingPoint> point = communicator.meeting_point();
    watchdog_.watch({channel, communicator.rank() == from ? 0 : 1, names,
                     point ? inner_meeting_point(*point, messages) : nullptr, warning});
  }
  return channel;
}

void CollectiveMonitor::abort(const std::string& reason) {
  for (const std::weak_ptr<Communicator>& known : groups_) {
    if (const auto group = known.lock()) group->abort(reason);
  }
}

std::string CollectiveMonitor::dump(const std::string& reason) {
  if (options_.dump_folder.empty()) return {};
  const std::filesystem::path path =
      std::filesystem::path(options_.dump_folder) / c10::str("collectives_rank", record_->rank(), ".txt");
  std::error_code ignored;  // an error shows when the file is written
  std::filesystem::create_directories(options_.dump_folder, ignored);
  std::ofstream out(path);
  out << reason << "\n\nThe last collectives of this rank, the latest one last:\n" << record_->text();
  out.close();
  return out ? c10::str("the last collectives of rank ", record_->rank(), " are in ", path.string())
             : c10::str("the last collectives of rank ", record_->rank(), " could not be written to ", path.string());
}

}  // namespace fsdp::comm

namespace fsdp {

bool CollectiveCheck::covers(int64_t step) const {
  switch (level) {
    case CollectiveCheckLevel::kOff:
      return false;
    case CollectiveCheckLevel::kSampled:
      return step < first_steps || (every > 0 && step % every == 0);
    case CollectiveCheckLevel::kAlways:
      return true;
  }
  TORCH_CHECK(false, "fsdp: unknown level of collective checks ", static_cast<int>(level));
}

}  // namespace fsdp
