#include "comm/checked/checked_communicator.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <exception>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "comm/checked/fingerprint.h"
#include "comm/collective_identities.h"
#include "comm/collective_shapes.h"
#include "comm/error_text.h"
#include "comm/failure.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "comm/staged/staging_pool.h"
#include "fsdp/backends.h"

namespace fsdp::comm {

// The state kept with a communicator for all its wrappers. Has no reference to the communicator.
struct CheckedCommunicator::Group {
  std::shared_ptr<CollectiveMonitor> monitor;
  std::shared_ptr<Communicator> control;  // null if collectives are not compared
  std::string name;
  std::vector<int> names;                       // of the ranks, in errors
  int index = 0;                                // in the record
  std::map<std::pair<int, int>, int> channels;  // the same for messages, by sender and receiver
  uint64_t next_number = 0;
  StagingPool buffers;
  std::weak_ptr<CheckedCommunicator> wrapper;
};

namespace {

// Rethrows an error with `note`, the text about the dump, appended.
[[noreturn]] void rethrow_with(const std::exception_ptr& error, const std::string& note) {
  try {
    std::rethrow_exception(error);
  } catch (c10::Error& known) {
    if (!note.empty()) known.add_context(note);
    throw;
  } catch (const std::exception& other) {
    if (note.empty()) throw;
    Failure{.reason = c10::str(other.what(), " (", note, ")")}.raise();
  }
}

bool needs_control(const Communicator& inner, const CollectiveMonitor& monitor) {
  return inner.size() > 1 && !inner.carries_identity() &&
         monitor.options().collective_check.level != CollectiveCheckLevel::kOff;
}

std::shared_ptr<Communicator> make_control(const Communicator& inner, const std::string& name) {
  const std::shared_ptr<MeetingPoint> point = inner.meeting_point();
  TORCH_CHECK(point, "fsdp: the collectives of group '", name, "' (", inner.backend(),
              ") carry no identity, and its communicator has no meeting point over which ranks could compare them: "
              "give it one (Communicator::meeting_point), or set DebugOptions::collective_check.level to kOff");
  GlooOptions options;
  if (inner.timeout().count() > 0) options.timeout = inner.timeout();
  return make_gloo_communicator(inner_meeting_point(*point, "collective checks"), inner.rank(), inner.size(), options);
}

}  // namespace

// A collective or a message in flight: its entry in the record, and the check of a collective.
class CheckedCommunicator::Flight {
 public:
  // `channel`: of a message, in the record.
  Flight(std::shared_ptr<Group> group, const std::shared_ptr<Communicator>& inner, const CollectiveIdentity& message,
         int channel)
      : group_(std::move(group)), inner_(inner), ticket_(group_->monitor->record().issue(channel, message)) {}
  Flight(std::shared_ptr<Group> group, const std::shared_ptr<Communicator>& inner, const CollectiveIdentity& identity)
      : group_(std::move(group)),
        inner_(inner),
        ticket_(group_->monitor->record().issue(group_->index, identity)),
        number_(group_->next_number++) {
    CollectiveMonitor& monitor = *group_->monitor;
    if (!group_->control || !monitor.checks_now()) return;
    run([&] {
      const Fingerprint own = fingerprint_of(identity, number_, monitor.step());
      description_ = own.describe();
      exchange_.emplace(*group_->control, group_->buffers, own);
    });
  }

  // Runs a part of the collective. If it fails, records the failure, writes the dump and rethrows.
  template <typename Part>
  std::invoke_result_t<Part&> run(Part part) {
    try {
      return part();
    } catch (const std::exception& error) {
      group_->monitor->record().failed(ticket_);
      if (group_->control && waits_) group_->monitor->abort(first_line(error));
      rethrow_with(std::current_exception(), group_->monitor->dump(first_line(error)));
    }
  }

  void begin_wait() {
    waits_ = true;
    group_->monitor->record().waiting(ticket_);
    compare();
  }
  void end_wait() { group_->monitor->record().done(ticket_); }

  void compare() {
    if (!exchange_) return;
    waits_ = true;
    std::optional<Failure> failure;
    try {
      if (auto difference = exchange_->compare(group_->names)) {
        failure = {Failure::Kind::kRanksDiffer, *std::move(difference)};
      }
    } catch (const std::exception& error) {
      const int rank = group_->names[static_cast<size_t>(inner_->rank())];
      failure = Failure::of(error);
      failure->reason =
          c10::str("rank ", rank, " cannot compare its ", description_, " with the other ranks: ", failure->reason);
    }
    exchange_.reset();
    if (failure) failure->raise();
  }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Communicator> inner_;
  FlightRecord::Ticket ticket_;
  uint64_t number_ = 0;
  std::string description_;  // set if the collective is checked
  bool waits_ = false;       // for others; an earlier failure concerns this rank alone
  std::optional<FingerprintExchange> exchange_;
};

class CheckedCommunicator::CheckedWork final : public Work {
 public:
  CheckedWork(Flight flight, std::unique_ptr<Work> inner) : flight_(std::move(flight)), inner_(std::move(inner)) {}

  void wait() override {
    flight_.run([this] {
      flight_.begin_wait();
      inner_->wait();
      flight_.end_wait();
    });
  }
  void advance() override {
    flight_.run([this] {
      flight_.compare();
      inner_->advance();
    });
  }

 private:
  Flight flight_;
  std::unique_ptr<Work> inner_;
};

CheckedCommunicator::CheckedCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Group> group)
    : ForwardingCommunicator(std::move(inner)), group_(std::move(group)) {}

std::shared_ptr<CheckedCommunicator::Group> CheckedCommunicator::make_group(
    const std::shared_ptr<Communicator>& inner, const std::shared_ptr<CollectiveMonitor>& monitor,
    const std::string& name, std::shared_ptr<Communicator> control) {
  auto group = std::make_shared<Group>();
  group->monitor = monitor;
  group->name = name;
  for (int rank = 0; rank < inner->size(); ++rank) group->names.push_back(inner->world_rank(rank));
  group->index = monitor->add_group(inner, name);
  group->control = control || !needs_control(*inner, *monitor) ? std::move(control) : make_control(*inner, name);
  if (group->control) monitor->add_control(group->control);
  inner->attachment() = group;
  return group;
}

std::shared_ptr<CheckedCommunicator> CheckedCommunicator::wrap(const std::shared_ptr<Communicator>& inner,
                                                               const std::shared_ptr<Group>& group) {
  auto wrapper = group->wrapper.lock();
  if (!wrapper) {
    wrapper.reset(new CheckedCommunicator(inner, group));
    group->wrapper = wrapper;
  }
  return wrapper;
}

std::shared_ptr<CheckedCommunicator> CheckedCommunicator::over(const std::shared_ptr<Communicator>& inner,
                                                               const std::shared_ptr<CollectiveMonitor>& monitor,
                                                               const std::string& name) {
  if (auto checked = std::dynamic_pointer_cast<CheckedCommunicator>(inner)) return checked;
  auto group = std::static_pointer_cast<Group>(inner->attachment());
  return wrap(inner, group ? group : make_group(inner, monitor, name, nullptr));
}

std::shared_ptr<CollectiveMonitor> CheckedCommunicator::monitor_over(Communicator& inner) {
  if (auto* checked = dynamic_cast<CheckedCommunicator*>(&inner)) return checked->group_->monitor;
  const auto group = std::static_pointer_cast<Group>(inner.attachment());
  return group ? group->monitor : nullptr;
}

const std::shared_ptr<CollectiveMonitor>& CheckedCommunicator::monitor() const { return group_->monitor; }

void CheckedCommunicator::abort(const std::string& reason) {
  if (group_->control) group_->control->abort(reason);
  inner()->abort(reason);
}

const CollectiveIdentity& CheckedCommunicator::identify(CollectiveKind kind, const CollectiveId& id,
                                                        const at::Tensor& larger, at::ScalarType output_dtype,
                                                        const ReduceOptions& options,
                                                        const std::vector<uint64_t>* flags) {
  identity_.kind = kind;
  identity_.id = id;
  identity_.numel = larger.numel();
  identity_.dtype = larger.scalar_type();
  identity_.output_dtype = output_dtype;
  identity_.scale = options.scale;
  identity_.flag_words = flags ? static_cast<uint32_t>(flags->size()) : 0;
  identity_.root = 0;
  return identity_;
}

template <typename Issue>
std::unique_ptr<Work> CheckedCommunicator::issue_checked(const CollectiveIdentity& identity, Issue issue) {
  Flight flight(group_, inner(), identity);
  auto work = flight.run(issue);
  return std::make_unique<CheckedWork>(std::move(flight), std::move(work));
}

template <typename Run>
auto CheckedCommunicator::run_checked(const CollectiveIdentity& identity, Run run) {
  Flight flight(group_, inner(), identity);
  return flight.run([&] {
    flight.begin_wait();
    auto result = run();
    flight.end_wait();
    return result;
  });
}

std::unique_ptr<Work> CheckedCommunicator::all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) {
  const auto& identity = identify(CollectiveKind::kAllGather, id, output, output.scalar_type(), {}, nullptr);
  return issue_checked(identity, [&] { return inner()->all_gather(std::move(output), std::move(input), id); });
}

std::unique_ptr<Work> CheckedCommunicator::all_gather_ranges(at::Tensor tensor, const RankRanges& ranges,
                                                             const CollectiveId& id) {
  const auto& identity = identify(CollectiveKind::kAllGather, id, tensor, tensor.scalar_type(), {}, nullptr);
  return issue_checked(identity, [&] { return inner()->all_gather_ranges(std::move(tensor), ranges, id); });
}

std::unique_ptr<Work> CheckedCommunicator::reduce_scatter(at::Tensor output, at::Tensor input,
                                                          const ReduceOptions& options, const CollectiveId& id,
                                                          std::vector<uint64_t>* flags) {
  const auto& identity = identify(CollectiveKind::kReduceScatter, id, input, output.scalar_type(), options, flags);
  return issue_checked(
      identity, [&] { return inner()->reduce_scatter(std::move(output), std::move(input), options, id, flags); });
}

std::unique_ptr<Work> CheckedCommunicator::all_reduce(at::Tensor output, at::Tensor tensor,
                                                      const ReduceOptions& options, const CollectiveId& id,
                                                      std::vector<uint64_t>* flags) {
  const auto& identity = identify(CollectiveKind::kAllReduce, id, tensor, output.scalar_type(), options, flags);
  return issue_checked(identity,
                       [&] { return inner()->all_reduce(std::move(output), std::move(tensor), options, id, flags); });
}

std::unique_ptr<Work> CheckedCommunicator::broadcast(at::Tensor tensor, int root, const CollectiveId& id) {
  identify(CollectiveKind::kBroadcast, id, tensor, tensor.scalar_type(), {}, nullptr);
  identity_.root = root;
  return issue_checked(identity_, [&] { return inner()->broadcast(std::move(tensor), root, id); });
}

std::unique_ptr<Work> CheckedCommunicator::all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                                      const CollectiveId& id) {
  const auto& identity = identify(CollectiveKind::kAllToAll, id, input, output.scalar_type(), {}, nullptr);
  return issue_checked(identity, [&] { return inner()->all_to_all(std::move(output), std::move(input), counts, id); });
}

int CheckedCommunicator::channel_of(int from, int to) {
  const auto [channel, is_new] = group_->channels.try_emplace({from, to});
  if (is_new) channel->second = group_->monitor->add_channel(*inner(), from, to, group_->name);
  return channel->second;
}

template <typename Issue>
std::unique_ptr<Work> CheckedCommunicator::issue_message(const at::Tensor& tensor, int from, int to,
                                                         const CollectiveId& id, Issue issue) {
  check_message(tensor, from == rank() ? to : from, rank(), size(), from == rank() ? "send" : "receive", id);
  const auto identity = identify_message(tensor, inner()->world_rank(from), inner()->world_rank(to), id);
  Flight flight(group_, inner(), identity, channel_of(from, to));
  auto work = flight.run(issue);
  return std::make_unique<CheckedWork>(std::move(flight), std::move(work));
}

std::unique_ptr<Work> CheckedCommunicator::send(at::Tensor tensor, int to, const CollectiveId& id) {
  return issue_message(tensor, rank(), to, id, [&] { return inner()->send(tensor, to, id); });
}

std::unique_ptr<Work> CheckedCommunicator::recv(at::Tensor output, int from, const CollectiveId& id) {
  return issue_message(output, from, rank(), id, [&] { return inner()->recv(output, from, id); });
}

std::vector<std::string> CheckedCommunicator::all_gather_bytes(const std::string& bytes, const CollectiveId& id) {
  CollectiveIdentity identity;
  identity.kind = CollectiveKind::kGatherBytes;
  identity.id = id;
  identity.numel = static_cast<int64_t>(bytes.size());
  return run_checked(identity, [&] { return inner()->all_gather_bytes(bytes, id); });
}

std::shared_ptr<Communicator> CheckedCommunicator::subgroup(const std::vector<int>& members, const CollectiveId& id) {
  CollectiveIdentity identity;
  identity.kind = CollectiveKind::kGatherBytes;
  identity.id = id;
  return run_checked(identity, [&] {
    auto group = inner()->subgroup(members, id);
    auto control = group_->control ? group_->control->subgroup(members, id) : nullptr;
    return std::shared_ptr<Communicator>(wrap(group, make_group(group, group_->monitor, id.name, std::move(control))));
  });
}

std::shared_ptr<Communicator> CheckedCommunicator::twin() {
  if (twin_) return twin_;
  const std::shared_ptr<Communicator> inner = this->inner()->twin();
  auto group = std::static_pointer_cast<Group>(inner->attachment());
  if (!group) {
    group = make_group(inner, group_->monitor, c10::str(group_->name, ", twin"),
                       group_->control ? group_->control->twin() : nullptr);
  }
  twin_ = wrap(inner, group);
  return twin_;
}

}  // namespace fsdp::comm
