#include "comm/checked/fingerprint.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace fsdp::comm {
namespace {

constexpr size_t kFingerprintDescriptionBytes = 228;

struct WireFingerprint {
  uint64_t hash;
  uint64_t number;
  int64_t step;
  uint32_t description_length;
  char description[kFingerprintDescriptionBytes];
};
constexpr int64_t kFingerprintBytes = 256;
static_assert(sizeof(WireFingerprint) == kFingerprintBytes);

const CollectiveId kCheck{"collective check", 0, Pass::kSetup};

void write(const Fingerprint& fingerprint, void* bytes) {
  WireFingerprint wire{};
  wire.hash = fingerprint.hash;
  wire.number = fingerprint.number;
  wire.step = fingerprint.step;
  wire.description_length =
      static_cast<uint32_t>(std::min(fingerprint.description.size(), kFingerprintDescriptionBytes));
  std::memcpy(wire.description, fingerprint.description.data(), wire.description_length);
  std::memcpy(bytes, &wire, sizeof(wire));
}

// Returns a rank whose fingerprint most ranks have; if there are several, the lowest one.
size_t usual(const std::vector<Fingerprint>& all) {
  std::map<uint64_t, size_t> count;
  for (const Fingerprint& one : all) ++count[one.hash];
  size_t best = 0;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (count[all[rank].hash] > count[all[best].hash]) best = rank;
  }
  return best;
}

}  // namespace

std::string Fingerprint::describe() const {
  return c10::str(description, ", as #", number, " of its group, at step ", step);
}

Fingerprint fingerprint_of(const CollectiveIdentity& identity, uint64_t number, int64_t step) {
  Fingerprint fingerprint{identity.hash(), number, step, identity.describe()};
  for (const uint64_t value : {number, static_cast<uint64_t>(step)}) {
    fingerprint.hash = (fingerprint.hash ^ value) * 0x9e3779b97f4a7c15ULL;
    fingerprint.hash ^= fingerprint.hash >> 29;
  }
  return fingerprint;
}

FingerprintExchange::FingerprintExchange(Communicator& control, StagingPool& buffers, const Fingerprint& own)
    : size_(control.size()), buffers_(buffers) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  const int64_t bytes = kFingerprintBytes * size_;
  buffer_ = buffers_.take(bytes);
  const at::Tensor slice = buffer_.narrow(0, control.rank() * kFingerprintBytes, kFingerprintBytes);
  write(own, slice.mutable_data_ptr());
  work_ = control.all_gather(buffer_.narrow(0, 0, bytes), slice, kCheck);
}

Fingerprint FingerprintExchange::of_rank(int rank) const {
  WireFingerprint wire;
  std::memcpy(&wire, static_cast<const char*>(buffer_.const_data_ptr()) + rank * kFingerprintBytes, sizeof(wire));
  const size_t length = std::min<size_t>(wire.description_length, kFingerprintDescriptionBytes);
  return {wire.hash, wire.number, wire.step, std::string(wire.description, length)};
}

std::optional<std::string> FingerprintExchange::compare(const std::vector<int>& names) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  work_->wait();
  const auto* first = static_cast<const char*>(buffer_.const_data_ptr());
  bool same = true;
  for (int rank = 1; rank < size_ && same; ++rank) {
    same = std::memcmp(first, first + rank * kFingerprintBytes, sizeof(uint64_t)) == 0;
  }
  std::optional<std::string> trouble;
  if (!same) {
    std::vector<Fingerprint> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(of_rank(rank));
    const size_t reference = usual(all);
    const auto other = static_cast<size_t>(
        std::find_if(all.begin(), all.end(), [&](const Fingerprint& one) { return one.hash != all[reference].hash; }) -
        all.begin());
    trouble = c10::str("rank ", names[other], " issued ", all[other].describe(), ", where rank ", names[reference],
                       " issued ", all[reference].describe(),
                       "; all ranks must issue the same collectives in the same order");
  }
  buffers_.release(std::move(buffer_));
  return trouble;
}

}  // namespace fsdp::comm
