// Owns one ncclComm_t of this rank: makes its calls, handles its failures, and ends it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <nccl.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/device_stream.h"
#include "comm/collective_shapes.h"
#include "comm/failure.h"
#include "comm/nccl/nccl_library.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// The setup that the groups of one family share.
struct NcclSetup {
  std::shared_ptr<const NcclLibrary> library;
  c10::Device device;
  NcclOptions options;
};

// Describes a collective in errors.
struct NcclSubject {
  const char* kind;
  const CollectiveId& id;
};

class NcclGroup {
 public:
  // Connects to the other ranks. Collective. `host` is a host group of the same ranks; it carries failures to and from
  // the other ranks. `unique_id`: the bytes of an ncclUniqueId.
  NcclGroup(NcclSetup setup, std::shared_ptr<Communicator> host, const std::string& unique_id);
  // Waits, at most for the timeout, until the device has done what was issued, unless the group has failed or waits are
  // interrupted.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Runs `action`, which passes the communicator to an NCCL function and returns the result of that function. Throws if
  // the group has failed before, or if the action fails.
  template <typename Action>
  void call(const NcclSubject& subject, Action action) {
    check(subject);
    c10::DeviceGuard on_device(setup_.device);
    settle(subject, action(*setup_.library, comm_));
  }

  // Throws if this rank has failed in the meantime.
  void check(const NcclSubject& subject);
  // Throws if another rank has failed or left. What is in flight may still succeed, because that rank may already have
  // done its part.
  void check_complete(const NcclSubject& subject);
  // Throws if this one of the other ranks has.
  void check_present(const NcclSubject& subject, int rank);

  // Aborts the communicator and marks the groups of this family as failed on all ranks. All later calls throw the
  // error of this failure.
  void fail(const Failure& failure);

  // Records the collective whose kernels were just enqueued on the current stream as the latest one.
  void note_issued() { latest_.record_current(setup_.device); }

  // Releases a reduction operator of this communicator, unless the communicator has already ended.
  void release(ncclRedOp_t op) noexcept;

  const NcclSetup& setup() const { return setup_; }

 private:
  void settle(const NcclSubject& subject, ncclResult_t result);
  [[noreturn]] void fail(const NcclSubject& subject, ncclResult_t result);
  [[noreturn]] void fail_late(const NcclSubject& subject);
  [[noreturn]] void fail_interrupted(const NcclSubject& subject);
  [[noreturn]] void fail_with(const Failure& failure);
  // Fails with the error of a check of the hosts, if it throws.
  void fail_if(const NcclSubject& subject, const std::function<void()>& check);
  void await_reasons(const NcclSubject& subject);
  std::string who(const NcclSubject& subject) const;
  void abort();
  void drain() noexcept;

  NcclSetup setup_;
  std::shared_ptr<Communicator> host_;
  ncclComm_t comm_ = nullptr;
  base::DeviceEvent latest_;
  std::optional<Failure> failure_;  // why the group failed; empty if it has not
};

// Returns the bytes of a new ncclUniqueId.
std::string make_nccl_unique_id(const NcclLibrary& library);

}  // namespace fsdp::comm
