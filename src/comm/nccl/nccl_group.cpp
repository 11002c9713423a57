#include "comm/nccl/nccl_group.h"

#include <c10/util/StringUtil.h>

#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "base/interruption.h"
#include "comm/failable.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPollingInterval = std::chrono::microseconds(200);
constexpr auto kTimeForReasons = std::chrono::seconds(3);
const CollectiveId kSetup{"group", 0, Pass::kSetup};

const char* advice(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return "A CUDA call failed: an earlier kernel may be the cause (CUDA_LAUNCH_BLOCKING=1 finds it), or two "
             "ranks use one GPU";
    case ncclSystemError:
      return "A system call failed: check the network between the hosts (NCCL_SOCKET_IFNAME chooses "
             "an interface) and the size of /dev/shm";
    case ncclRemoteError:
      return "Another rank ended or failed: see its own error";
    case ncclInvalidUsage:
      return "Do two ranks use one GPU, or do ranks issue different collectives?";
    default:
      return "Set NCCL_DEBUG=WARN for more details from NCCL";
  }
}

// Returns NCCL's description of an error.
std::string words_of(const NcclLibrary& library, ncclComm_t comm, ncclResult_t result) {
  const char* last = library.get_last_error(comm);
  const std::string more = last != nullptr && *last != '\0' ? c10::str(" (", last, ")") : std::string();
  return c10::str(library.get_error_string(result), more);
}

ncclUniqueId parse_unique_id(const std::string& bytes) {
  ncclUniqueId id;
  if (bytes.size() != sizeof(id)) {
    Failure{Failure::Kind::kRanksDiffer, c10::str("the id of an NCCL group has ", sizeof(id), " bytes, not ",
                                                  bytes.size(), ": do all ranks run the same version of this library?")}
        .raise();
  }
  std::memcpy(&id, bytes.data(), sizeof(id));
  return id;
}

}  // namespace

std::string make_nccl_unique_id(const NcclLibrary& library) {
  ncclUniqueId id;
  const ncclResult_t result = library.get_unique_id(&id);
  if (result != ncclSuccess) {
    Failure{.reason = c10::str("NCCL cannot make the id of a group: ", words_of(library, nullptr, result), ". ",
                               advice(result))}
        .raise();
  }
  return {reinterpret_cast<const char*>(&id), sizeof(id)};
}

NcclGroup::NcclGroup(NcclSetup setup, std::shared_ptr<Communicator> host, const std::string& unique_id)
    : setup_(std::move(setup)), host_(std::move(host)) {
  const ncclUniqueId id = parse_unique_id(unique_id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = setup_.options.blocking ? 1 : 0;
  c10::DeviceGuard on_device(setup_.device);
  try {
    settle({"set-up", kSetup},
           setup_.library->comm_init_rank_config(&comm_, host_->size(), id, host_->rank(), &config));
  } catch (...) {
    abort();
    throw;
  }
}

NcclGroup::~NcclGroup() {
  if (!failure_) drain();
  abort();
}

// Kernels aborted before their end would leave other ranks without this rank's part.
void NcclGroup::drain() noexcept {
  try {
    const auto deadline = Clock::now() + setup_.options.timeout;
    while (!latest_.reached() && Clock::now() < deadline && !base::Interruption::is_requested()) {
      check({"end", kSetup});
      std::this_thread::sleep_for(kPollingInterval);
    }
  } catch (const std::exception&) {
    // The group has failed: nothing is left to wait for.
  }
}

void NcclGroup::abort() {
  if (comm_ == nullptr) return;
  c10::DeviceGuard on_device(setup_.device);
  setup_.library->comm_abort(std::exchange(comm_, nullptr));
}

void NcclGroup::release(ncclRedOp_t op) noexcept {
  if (comm_ != nullptr) setup_.library->red_op_destroy(op, comm_);
}

void NcclGroup::check(const NcclSubject& subject) {
  if (!failure_) {
    try {
      check_group_not_failed(*host_);
    } catch (const std::exception& error) {
      fail(Failure::of(error));
    }
  }
  if (failure_) failure_->raise();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = setup_.library->comm_get_async_error(comm_, &state);
  if (result != ncclSuccess) fail(subject, result);
  if (state != ncclSuccess && state != ncclInProgress) fail(subject, state);
}

void NcclGroup::check_complete(const NcclSubject& subject) {
  fail_if(subject, [this] { check_group_complete(*host_); });
}

void NcclGroup::check_present(const NcclSubject& subject, int rank) {
  fail_if(subject, [&] { comm::check_present(*host_, rank); });
}

void NcclGroup::fail_if(const NcclSubject& subject, const std::function<void()>& check) {
  std::optional<Failure> loss;
  try {
    check();
  } catch (const std::exception& error) {
    loss = Failure::of(error);
  }
  if (loss) fail_with({loss->kind, who(subject) + loss->reason});
}

// A non-blocking communicator returns ncclInProgress until it is done.
void NcclGroup::settle(const NcclSubject& subject, ncclResult_t result) {
  const auto deadline = Clock::now() + setup_.options.timeout;
  while (result == ncclInProgress) {
    if (Clock::now() > deadline) fail_late(subject);
    if (base::Interruption::is_requested()) fail_interrupted(subject);
    std::this_thread::sleep_for(kPollingInterval);
    check_complete(subject);
    const ncclResult_t asked = setup_.library->comm_get_async_error(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess) fail(subject, result);
}

std::string NcclGroup::who(const NcclSubject& subject) const {
  return c10::str("rank ", host_->rank(), " of ", host_->size(), " cannot finish its ",
                  describe(subject.kind, subject.id), " over NCCL ", nccl_version_text(setup_.library->version), " on ",
                  setup_.device, ": ");
}

void NcclGroup::fail(const NcclSubject& subject, ncclResult_t result) {
  if (result == ncclRemoteError) await_reasons(subject);
  const auto kind = result == ncclRemoteError ? Failure::Kind::kRankLost : Failure::Kind::kOther;
  fail_with({kind, c10::str(who(subject), words_of(*setup_.library, comm_, result), ". ", advice(result))});
}

// NCCL notices the loss of another rank before that rank's own error has come through the hosts.
void NcclGroup::await_reasons(const NcclSubject& subject) {
  const auto deadline = Clock::now() + kTimeForReasons;
  while (host_->size() > 1 && Clock::now() < deadline && !base::Interruption::is_requested()) {
    check_complete(subject);
    std::this_thread::sleep_for(kPollingInterval);
  }
}

void NcclGroup::fail_late(const NcclSubject& subject) {
  fail_with({Failure::Kind::kRankLate, c10::str(who(subject), "it was not done within ", setup_.options.timeout.count(),
                                                " ms. Is another rank stuck, or does it skip this collective?")});
}

void NcclGroup::fail_interrupted(const NcclSubject& subject) {
  fail_with({Failure::Kind::kInterrupted, c10::str(who(subject), "it was interrupted while it waited for the others")});
}

void NcclGroup::fail_with(const Failure& failure) {
  fail(failure);
  failure.raise();
}

void NcclGroup::fail(const Failure& failure) {
  if (!failure_) failure_ = failure;
  host_->abort(failure.reason);
  abort();
}

}  // namespace fsdp::comm
