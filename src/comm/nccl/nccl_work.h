// Collectives and messages over NCCL that have been issued.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/meeting/host_agreement.h"
#include "comm/nccl/nccl_group.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// A group, and the agreement of its ranks through their hosts.
struct NcclContext {
  std::shared_ptr<Communicator> host;
  std::unique_ptr<NcclGroup> group;
  std::unique_ptr<HostAgreement> agreement;
};

// Must be called right after the collective's kernels were enqueued on the current stream. `exchange`: of the hosts;
// null if they compare nothing. `flags`: gets the flags of all ranks when the collective was waited for.
std::unique_ptr<Work> make_nccl_work(std::shared_ptr<NcclContext> context, const CollectiveIdentity& identity,
                                     std::shared_ptr<HostAgreement::Exchange> exchange, std::vector<uint64_t>* flags);
// The same for a message. `comparison`: of the hosts; null if this rank waits for none.
std::unique_ptr<Work> make_nccl_message_work(std::shared_ptr<NcclContext> context, CollectiveId id,
                                             std::unique_ptr<Work> comparison);

}  // namespace fsdp::comm
