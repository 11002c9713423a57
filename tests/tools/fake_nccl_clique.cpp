#include "fake_nccl_clique.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>

namespace fake_nccl {
namespace {

std::mutex cliques_mutex;
std::map<std::string, std::weak_ptr<Clique>> cliques;

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

}  // namespace

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
