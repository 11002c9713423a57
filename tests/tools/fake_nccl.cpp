#include "fake_nccl.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fake_nccl {

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

enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

// One rank's contribution to a collective.
struct Part {
  const void* send;
  void* receive;
  Kind kind;
  size_t count;
  ncclDataType_t dtype;
  double factor;
  int root = 0;
};

// One collective of all ranks. The last rank to arrive carries it out for all of them.
struct Meeting {
  std::vector<std::optional<Part>> parts;
  size_t come = 0;
  size_t gone = 0;
  bool done = false;
  ncclResult_t result = ncclSuccess;
};

// A message between two ranks.
struct Parcel {
  std::string bytes;
  bool taken = false;
};

struct Clique {
  explicit Clique(int size) : size(size) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, Meeting> meetings;                                        // by number of the collective
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Parcel>>> parcels;  // by sender and receiver
  std::set<int> left;  // ranks that ended or aborted their communicator
  int joined = 0;
  bool aborted = false;
};

std::mutex cliques_mutex;
std::map<std::string, std::weak_ptr<Clique>> cliques;

std::shared_ptr<Clique> clique_of(const ncclUniqueId& id, int size) {
  std::lock_guard lock(cliques_mutex);
  std::weak_ptr<Clique>& known = cliques[std::string(id.internal, sizeof(id.internal))];
  auto clique = known.lock();
  if (!clique) known = clique = std::make_shared<Clique>(size);
  return clique;
}

size_t bytes_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

// Like NCCL, rounds each product and each sum to the dtype.
template <typename T>
void add_range(const std::vector<std::optional<Part>>& parts, size_t begin, size_t count, T* out) {
  std::vector<T> sum(count);
  for (size_t i = 0; i < count; ++i) {
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      const Part& part = *parts[rank];
      T value = static_cast<const T*>(part.send)[begin + i];
      if (part.factor != 1.0) value = static_cast<T>(static_cast<T>(part.factor) * value);
      sum[i] = rank == 0 ? value : static_cast<T>(sum[i] + value);
    }
  }
  std::copy(sum.begin(), sum.end(), out);
}

template <typename T>
void reduce(Meeting& meeting) {
  auto& parts = meeting.parts;
  const size_t count = parts[0]->count;
  if (parts[0]->kind == Kind::kReduceScatter) {
    // Computes all sums before it writes any result, because a rank's result may overlap its contribution.
    std::vector<std::vector<T>> sums(parts.size(), std::vector<T>(count));
    for (size_t rank = 0; rank < parts.size(); ++rank) add_range<T>(parts, rank * count, count, sums[rank].data());
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      std::copy(sums[rank].begin(), sums[rank].end(), static_cast<T*>(parts[rank]->receive));
    }
    return;
  }
  std::vector<T> sum(count);
  add_range<T>(parts, 0, count, sum.data());
  for (auto& part : parts) std::copy(sum.begin(), sum.end(), static_cast<T*>(part->receive));
}

void gather(Meeting& meeting) {
  for (const auto& from : meeting.parts) {
    const size_t bytes = from->count * bytes_of(from->dtype);
    const size_t offset = static_cast<size_t>(&from - meeting.parts.data()) * bytes;
    for (const auto& to : meeting.parts) std::memmove(static_cast<char*>(to->receive) + offset, from->send, bytes);
  }
}

void spread(Meeting& meeting) {
  const Part& from = *meeting.parts[static_cast<size_t>(meeting.parts[0]->root)];
  for (const auto& to : meeting.parts) std::memmove(to->receive, from.send, from.count * bytes_of(from.dtype));
}

void carry_out(Meeting& meeting) {
  const Part& first = *meeting.parts[0];
  for (const auto& part : meeting.parts) {
    if (part->kind != first.kind || part->count != first.count || part->dtype != first.dtype ||
        part->root != first.root) {
      meeting.result = ncclInvalidUsage;
      return;
    }
  }
  if (first.kind == Kind::kAllGather) return gather(meeting);
  if (first.kind == Kind::kBroadcast) return spread(meeting);
  switch (first.dtype) {
    case ncclFloat32:
      return reduce<float>(meeting);
    case ncclFloat64:
      return reduce<double>(meeting);
    case ncclFloat16:
      return reduce<c10::Half>(meeting);
    case ncclBfloat16:
      return reduce<c10::BFloat16>(meeting);
    case ncclInt8:
      return reduce<int8_t>(meeting);
    case ncclUint8:
      return reduce<uint8_t>(meeting);
    case ncclInt32:
      return reduce<int32_t>(meeting);
    case ncclInt64:
      return reduce<int64_t>(meeting);
    default:
      meeting.result = ncclInvalidArgument;
  }
}

ncclResult_t meet(Clique& clique, uint64_t number, int rank, const Part& part) {
  std::unique_lock lock(clique.mutex);
  // After an abort, the memory of ranks that came earlier may be freed.
  if (clique.aborted) return ncclRemoteError;
  Meeting& meeting = clique.meetings[number];
  meeting.parts.resize(static_cast<size_t>(clique.size));
  meeting.parts[static_cast<size_t>(rank)] = part;
  if (++meeting.come == meeting.parts.size()) {
    carry_out(meeting);
    meeting.done = true;
    clique.changed.notify_all();
  }
  clique.changed.wait(lock, [&] { return meeting.done || clique.aborted; });
  const ncclResult_t result = meeting.done ? meeting.result : ncclRemoteError;
  if (++meeting.gone == meeting.parts.size()) clique.meetings.erase(number);
  return result;
}

// A send or a receive in a group.
struct Transfer {
  bool sends;
  int peer;
  void* memory;
  size_t bytes;
};

// Puts down all outgoing messages, takes all incoming ones, and waits until the receivers have taken theirs. A rank
// that has left is an error only for ranks that still wait for it.
ncclResult_t transfer(Clique& clique, int rank, const std::vector<Transfer>& transfers) {
  std::unique_lock lock(clique.mutex);
  const auto is_gone = [&](int peer) { return clique.left.count(peer) + clique.left.count(rank) > 0; };
  std::vector<std::pair<int, std::shared_ptr<Parcel>>> sent;
  for (const Transfer& one : transfers) {
    if (!one.sends) continue;
    auto parcel = std::make_shared<Parcel>(Parcel{{static_cast<const char*>(one.memory), one.bytes}});
    clique.parcels[{rank, one.peer}].push_back(parcel);
    sent.emplace_back(one.peer, std::move(parcel));
  }
  clique.changed.notify_all();
  for (const Transfer& one : transfers) {
    if (one.sends) continue;
    auto& queue = clique.parcels[{one.peer, rank}];
    clique.changed.wait(lock, [&] { return !queue.empty() || is_gone(one.peer); });
    if (queue.empty()) return ncclRemoteError;
    const std::shared_ptr<Parcel> parcel = queue.front();
    queue.pop_front();
    if (parcel->bytes.size() != one.bytes) return ncclInvalidUsage;
    std::memcpy(one.memory, parcel->bytes.data(), one.bytes);
    parcel->taken = true;
    clique.changed.notify_all();
  }
  for (const auto& [peer, parcel] : sent) {
    clique.changed.wait(lock, [&, peer = peer, &parcel = parcel] { return parcel->taken || is_gone(peer); });
    if (!parcel->taken) return ncclRemoteError;
  }
  return ncclSuccess;
}

}  // namespace fake_nccl

using namespace fake_nccl;

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
