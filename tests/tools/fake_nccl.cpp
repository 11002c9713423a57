#include "fake_nccl.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fake_nccl_clique.h"

using namespace fake_nccl;

namespace {

struct Settings {
  std::mutex mutex;
  FakeNcclEnqueue enqueue = nullptr;
  std::map<std::pair<std::string, int>, ncclResult_t> failures;
  std::map<int, ncclResult_t> async_errors;
  int polls = 0;
  int version = 0;
};
Settings& settings() {
  static Settings instance;
  return instance;
}
std::atomic<int> live_communicators = 0;
std::atomic<int> live_operators = 0;

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool blocking = true;
  uint64_t issued = 0;
  std::shared_ptr<std::atomic<int>> async_result = std::make_shared<std::atomic<int>>(ncclSuccess);
  int polls_left = 0;
  std::vector<double> factors;  // factors of operators, by position
};

namespace {

// Returns and clears the failure that a test requested for this call.
std::optional<ncclResult_t> injected(const char* function, int rank) {
  std::lock_guard lock(settings().mutex);
  const auto found = settings().failures.find({function, rank});
  if (found == settings().failures.end()) return std::nullopt;
  const ncclResult_t result = found->second;
  settings().failures.erase(found);
  return result;
}

ncclResult_t answer(ncclComm& comm) {
  if (comm.blocking) return ncclSuccess;
  std::lock_guard lock(settings().mutex);
  comm.polls_left = settings().polls;
  return comm.polls_left > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t issue(ncclComm_t comm, const char* function, const Part& part, cudaStream_t stream) {
  if (const auto result = injected(function, comm->rank)) return *result;
  const uint64_t number = comm->issued++;
  FakeNcclEnqueue enqueue = nullptr;
  {
    std::lock_guard lock(settings().mutex);
    enqueue = settings().enqueue;
  }
  if (stream == nullptr || enqueue == nullptr) {
    const ncclResult_t result = meet(*comm->clique, number, comm->rank, part);
    return result == ncclSuccess ? answer(*comm) : result;
  }
  enqueue(stream, [clique = comm->clique, number, rank = comm->rank, part, to = comm->async_result] {
    if (const ncclResult_t result = meet(*clique, number, rank, part); result != ncclSuccess) *to = result;
  });
  return answer(*comm);
}

// The sends and receives of this thread's open group.
struct OpenGroup {
  bool open = false;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Transfer> transfers;
};
thread_local OpenGroup open_group;

ncclResult_t add_transfer(const char* function, const Transfer& one, ncclComm_t comm, cudaStream_t stream) {
  if (const auto result = injected(function, comm->rank)) return *result;
  if (!open_group.open) return ncclInvalidUsage;  // outside a group, it would wait for its peer's call
  open_group.comm = comm;
  open_group.stream = stream;
  open_group.transfers.push_back(one);
  return ncclSuccess;
}

ncclResult_t issue(const OpenGroup& group) {
  FakeNcclEnqueue enqueue = nullptr;
  {
    std::lock_guard lock(settings().mutex);
    enqueue = settings().enqueue;
  }
  ncclComm& comm = *group.comm;
  if (group.stream == nullptr || enqueue == nullptr) {
    const ncclResult_t result = transfer(*comm.clique, comm.rank, group.transfers);
    return result == ncclSuccess ? answer(comm) : result;
  }
  enqueue(group.stream, [clique = comm.clique, rank = comm.rank, all = group.transfers, to = comm.async_result] {
    if (const ncclResult_t result = transfer(*clique, rank, all); result != ncclSuccess) *to = result;
  });
  return answer(comm);
}

double factor_of(ncclComm_t comm, ncclRedOp_t op) {
  return op < ncclNumOps ? 1.0 : comm->factors[static_cast<size_t>(op - ncclNumOps)];
}

double read_scalar(const void* scalar, ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat64:
      return *static_cast<const double*>(scalar);
    case ncclFloat16:
      return static_cast<double>(static_cast<float>(*static_cast<const c10::Half*>(scalar)));
    case ncclBfloat16:
      return static_cast<double>(static_cast<float>(*static_cast<const c10::BFloat16*>(scalar)));
    default:
      return static_cast<double>(*static_cast<const float*>(scalar));
  }
}

}  // namespace

extern "C" {

void fake_nccl_set_enqueue(FakeNcclEnqueue enqueue) {
  std::lock_guard lock(settings().mutex);
  settings().enqueue = enqueue;
}
void fake_nccl_fail_next(const char* function, int rank, int result) {
  std::lock_guard lock(settings().mutex);
  settings().failures[{function, rank}] = static_cast<ncclResult_t>(result);
}
void fake_nccl_set_async_error(int rank, int result) {
  std::lock_guard lock(settings().mutex);
  settings().async_errors[rank] = static_cast<ncclResult_t>(result);
}
void fake_nccl_set_in_progress(int polls) {
  std::lock_guard lock(settings().mutex);
  settings().polls = polls;
}
void fake_nccl_set_version(int version) {
  std::lock_guard lock(settings().mutex);
  settings().version = version;
}
int fake_nccl_live_communicators() { return live_communicators; }
int fake_nccl_live_operators() { return live_operators; }
void fake_nccl_reset() {
  std::lock_guard lock(settings().mutex);
  settings().enqueue = nullptr;
  settings().failures.clear();
  settings().async_errors.clear();
  settings().polls = 0;
  settings().version = 0;
}

ncclResult_t ncclGetVersion(int* version) {
  std::lock_guard lock(settings().mutex);
  *version = settings().version != 0 ? settings().version : NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "some other error";
  }
}

const char* ncclGetLastError(ncclComm_t) { return "the fake library's last words"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<uint64_t> next = 1;
  *id = {};
  const uint64_t number = next++;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (const auto result = injected("ncclCommInitRankConfig", rank)) return *result;
  if (config->magic != NCCL_API_MAGIC) return ncclInvalidArgument;
  *comm = new ncclComm;
  (*comm)->clique = clique_of(id, size);
  (*comm)->rank = rank;
  (*comm)->blocking = config->blocking != 0;
  ++live_communicators;
  Clique& clique = *(*comm)->clique;
  std::unique_lock lock(clique.mutex);
  if (clique.size != size) return ncclInvalidArgument;
  ++clique.joined;
  clique.changed.notify_all();
  if (!(*comm)->blocking) {
    answer(**comm);
    return ncclInProgress;
  }
  clique.changed.wait(lock, [&] { return clique.joined == clique.size || clique.aborted; });
  return clique.aborted ? ncclRemoteError : answer(**comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    std::lock_guard lock(comm->clique->mutex);
    // Collectives that all ranks have joined are done. The others will never complete.
    comm->clique->aborted = true;
    comm->clique->left.insert(comm->rank);
    comm->clique->changed.notify_all();
  }
  live_operators -= static_cast<int>(comm->factors.size());
  --live_communicators;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  bool all_have_joined = false;
  {
    std::lock_guard lock(comm->clique->mutex);
    all_have_joined = comm->clique->joined == comm->clique->size;
  }
  std::lock_guard lock(settings().mutex);
  const auto injected_error = settings().async_errors.find(comm->rank);
  if (injected_error != settings().async_errors.end()) {
    *result = injected_error->second;
  } else if (comm->polls_left > 0) {
    --comm->polls_left;
    *result = ncclInProgress;
  } else if (!all_have_joined) {
    *result = ncclInProgress;
  } else {
    *result = static_cast<ncclResult_t>(comm->async_result->load());
  }
  return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  if (residence != ncclScalarHostImmediate) return ncclInvalidArgument;
  comm->factors.push_back(read_scalar(scalar, dtype));
  ++live_operators;
  *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(comm->factors.size()) - 1);
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  if (op != static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(comm->factors.size()) - 1)) {
    return ncclInvalidArgument;
  }
  comm->factors.pop_back();
  --live_operators;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream) {
  return issue(comm, "ncclAllGather", {send, receive, Kind::kAllGather, count, dtype, 1.0}, stream);
}

ncclResult_t ncclGroupStart() {
  open_group = {};
  open_group.open = true;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const OpenGroup group = std::exchange(open_group, {});
  if (!group.open) return ncclInvalidUsage;
  return group.transfers.empty() ? ncclSuccess : issue(group);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_transfer("ncclSend", {true, peer, const_cast<void*>(send), count * bytes_of(dtype)}, comm, stream);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_transfer("ncclRecv", {false, peer, receive, count * bytes_of(dtype)}, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, "ncclBroadcast", {send, receive, Kind::kBroadcast, count, dtype, 1.0, root}, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, "ncclReduceScatter", {send, receive, Kind::kReduceScatter, count, dtype, factor_of(comm, op)},
               stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, "ncclAllReduce", {send, receive, Kind::kAllReduce, count, dtype, factor_of(comm, op)}, stream);
}
}
