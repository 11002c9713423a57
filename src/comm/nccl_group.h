// One ncclComm_t of this rank: its calls, its failures, its end.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <nccl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/device_stream.h"
#include "comm/collective_shapes.h"
#include "comm/nccl_library.h"
#include "fsdp/communicator.h"

namespace fsdp {

// What the groups of one family have in common.
struct NcclSetup {
  std::shared_ptr<const NcclLibrary> library;
  c10::Device device;
  NcclOptions options;
};

// A collective, for errors.
struct NcclSubject {
  const char* kind;
  const CollectiveId& id;
};

class NcclGroup {
 public:
  // Collective: connects to the other ranks. `host`, a group of the same ranks, learns of failures and tells of those
  // of others. `unique_id`: the bytes of an ncclUniqueId.
  NcclGroup(NcclSetup setup, std::shared_ptr<Communicator> host, const std::string& unique_id);
  // Waits until the device has done what was issued, unless the group has failed, for as long as the timeout.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Does `action`, which gives the communicator to a function of NCCL and returns what that returns. Throws if the
  // group has failed before, or fails in it.
  template <typename Action>
  void call(const NcclSubject& subject, Action action) {
    check(subject);
    c10::DeviceGuard on_device(setup_.device);
    settle(subject, action(*setup_.library, comm_));
  }

  // Throws what went wrong on this rank in the meantime.
  void check(const NcclSubject& subject);
  // Throws if another rank has failed or left. What is in flight may still end well: it may have done its part.
  void check_complete(const NcclSubject& subject);

  // Aborts the communicator and marks the groups of this family as failed on all ranks; all calls throw `reason` from
  // now on.
  void fail(const std::string& reason);

  // The collective whose kernels were enqueued on the current stream is the latest one.
  void note_issued() { latest_.record_current(setup_.device); }

  // Destroys an operator of this communicator, unless that ended before.
  void forget(ncclRedOp_t op) noexcept;

  const NcclSetup& setup() const { return setup_; }

 private:
  void settle(const NcclSubject& subject, ncclResult_t result);
  [[noreturn]] void fail(const NcclSubject& subject, ncclResult_t result);
  [[noreturn]] void fail_late(const NcclSubject& subject);
  [[noreturn]] void fail_with(const std::string& reason);
  void await_reasons(const NcclSubject& subject);
  std::optional<std::string> loss_of_others() const;
  std::string who(const NcclSubject& subject) const;
  void abort();
  void drain() noexcept;

  NcclSetup setup_;
  std::shared_ptr<Communicator> host_;
  ncclComm_t comm_ = nullptr;
  DeviceEvent latest_;
  std::string failure_;  // why the group failed; empty if it did not
};

// The bytes of a new ncclUniqueId.
std::string make_nccl_unique_id(const NcclLibrary& library);

}  // namespace fsdp
