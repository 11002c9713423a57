#include "comm/meeting/host_agreement.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/failure.h"

namespace fsdp::comm {
namespace {

constexpr size_t kLatest = 6;        // collectives named in errors
constexpr size_t kUnfinished = 256;  // exchanges left for later

bool all_ones(const std::vector<uint64_t>& words) {
  return std::all_of(words.begin(), words.end(), [](uint64_t word) { return word == ~uint64_t{0}; });
}

}  // namespace

class HostAgreement::Exchange {
 public:
  std::vector<uint64_t> flags;
  std::unique_ptr<Work> work;  // null when finished
};

HostAgreement::HostAgreement(std::shared_ptr<Communicator> host, bool compare_all)
    : host_(std::move(host)), compare_all_(compare_all) {}

void HostAgreement::note(const CollectiveIdentity& identity) {
  history_ = (history_ ^ identity.hash()) * 0x9e3779b97f4a7c15ULL;
  history_ ^= history_ >> 29;
  ++count_;
  latest_.push_back(identity);
  if (latest_.size() > kLatest) latest_.pop_front();
}

CollectiveId HostAgreement::with_history(const CollectiveId& id) const {
  if (count_ == 0) return id;
  return {c10::str(id.name, ", after ", count_, " collectives with hash ", history_ % 1000000), id.generation, id.pass};
}

std::unique_ptr<Work> HostAgreement::issue(const CollectiveIdentity& identity, std::vector<uint64_t>* flags) {
  // The size is in the name, since the tensors that travel are empty.
  CollectiveId id = with_history(identity.id);
  if (has_equal_sizes(identity.kind)) id.name += c10::str(", ", identity.numel, " elements on the device");
  const auto input = at::empty({0}, identity.dtype);
  const auto output = at::empty({0}, identity.output_dtype);
  switch (identity.kind) {
    case CollectiveKind::kReduceScatter:
      return host_->reduce_scatter(output, input, {identity.scale}, id, flags);
    case CollectiveKind::kAllReduce:
      return host_->all_reduce(output, input, {identity.scale}, id, flags);
    default:
      return host_->all_gather(output, input, id);
  }
}

std::shared_ptr<HostAgreement::Exchange> HostAgreement::begin(const CollectiveIdentity& identity,
                                                              const std::vector<uint64_t>* flags) {
  note(identity);
  if (host_->size() == 1 || (flags == nullptr && !compare_all_)) return nullptr;
  auto exchange = std::make_shared<Exchange>();
  if (flags != nullptr) exchange->flags = *flags;
  exchange->work = issue(identity, flags != nullptr ? &exchange->flags : nullptr);
  unfinished_.push_back(exchange);
  return exchange;
}

void HostAgreement::finish(const std::shared_ptr<Exchange>& exchange, std::vector<uint64_t>* flags) {
  const bool known = !compare_all_ && all_ones(exchange->flags);
  const size_t keep = known ? kUnfinished : 0;
  while (unfinished_.size() > keep && (known || exchange->work)) finish_oldest();
  if (flags != nullptr && !known) *flags = exchange->flags;
}

void HostAgreement::finish_oldest() {
  const std::shared_ptr<Exchange> oldest = unfinished_.front();
  unfinished_.pop_front();
  const auto work = std::move(oldest->work);
  try {
    work->wait();
  } catch (const std::exception& error) {
    Failure failure = Failure::of(error);
    failure.reason += ". The latest that this rank issued: " + latest();
    failure.raise();
  }
}

std::string HostAgreement::latest() const {
  std::vector<std::string> lines;
  for (const CollectiveIdentity& identity : latest_) lines.push_back(identity.describe());
  return c10::Join("; ", lines);
}

}  // namespace fsdp::comm
