// Factories of communicators: Gloo, shared memory, NCCL, and a fake one for measurements.
//
//   auto chosen = fsdp::make_cpu_communicator(fsdp::rank_environment());
//   options.communicator = chosen.communicator;
//
// Those over Gloo, shared memory and NCCL are collective over the ranks of the environment. They block until all ranks
// have come, and throw if one does not come before the timeout.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "fsdp/communicator.h"
#include "fsdp/rank_environment.h"

namespace fsdp {

struct GlooOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Name or address of the network interface to use. Empty: the interface that reaches the master address.
  std::string host = {};
};

// A communicator over Gloo for the ranks of `environment`, which meet at the TCP store that rank 0 opens at
// master_address:master_port. If the port is in use, the error names it. Traffic is neither encrypted nor
// authenticated: use a trusted network. Tensors on a device are copied to pinned host memory and back.
std::shared_ptr<Communicator> make_gloo_communicator(const RankEnvironment& environment,
                                                     const GlooOptions& options = {});

// A communicator over memory that the ranks of one host share, for tensors on the CPU (tensors on a device are copied,
// as over Gloo). Ranks meet as for Gloo, and keep a Gloo group, which detects lost ranks. An error if ranks cannot
// reach each other's memory: on several hosts (see make_cpu_communicator), in containers that see different processes,
// or as different users. The memory has no name: none is left over, however ranks end, and no other user can open it.
std::shared_ptr<Communicator> make_shm_communicator(const RankEnvironment& environment,
                                                    const GlooOptions& options = {});

// The best communicator for ranks on the CPU: shared memory if all ranks can reach each other's memory; shared memory
// within hosts and Gloo between them, if each of several hosts has the same number of consecutive ranks, at least two;
// otherwise Gloo. On several hosts, sums are formed within a host first; sums of bf16 and fp16 travel between hosts in
// fp32. There, a collective ends when all ranks of a host have waited for it or for a later one of the group or its
// twin, or have called its advance(). The order of issue over group and twin must be the same on all ranks, and one
// thread at a time uses them.
struct ChosenCommunicator {
  std::shared_ptr<Communicator> communicator;
  std::string reason;  // the same on all ranks: "all 4 ranks share the memory of this host"
};
ChosenCommunicator make_cpu_communicator(const RankEnvironment& environment, const GlooOptions& options = {});

struct NcclOptions {
  // Limit for everything that the host waits for: other ranks that have yet to connect, their flags and bytes, and
  // NCCL's set-up if it does not block.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Index of the CUDA device. Unset: the local rank.
  std::optional<int> device;
  // Whether NCCL's own calls block until they are done. If not, `timeout` limits them too (ncclConfig_t::blocking).
  bool blocking = true;
  // Whether ranks compare every collective through their hosts before its wait() returns; wait() then blocks the host
  // until all ranks have issued it. false: each gather of bytes, barrier and reduction with flags still carries a hash
  // of all collectives issued so far. A difference is found there at the latest, after the collectives that mixed data.
  bool compare_every_collective = false;
  // Like GlooOptions::host, for traffic between the hosts.
  std::string host;
};

// A communicator over NCCL, for tensors on one CUDA device, which only this rank uses. Functions that NCCL lacks
// (flags, bytes, meeting) use a Gloo group of the same ranks. The NCCL library is searched at run time: the file named
// by the environment variable FSDP_NCCL_LIBRARY, otherwise the library that LibTorch has loaded, otherwise libnccl.so.2
// on the library search path. Errors say what to do: no CUDA device, no NCCL library or one that is too old, or
// fsdp.cpp built without NCCL's headers.
//
// When a collective fails on a rank, the rank's NCCL communicators are aborted, which ends their kernels, and the
// kernels of the other ranks as well. The first call that notices throws, and so do all later calls. Destroying a
// communicator waits for everything that was issued through it on the device.
std::shared_ptr<Communicator> make_nccl_communicator(const RankEnvironment& environment,
                                                     const NcclOptions& options = {});

// A group of `size` ranks of which only `rank` exists. Collectives do their local part and return at once; gathers
// repeat this rank's part. For measurements of host time; results are meaningless.
std::shared_ptr<Communicator> make_fake_communicator(int rank, int size);

}  // namespace fsdp
