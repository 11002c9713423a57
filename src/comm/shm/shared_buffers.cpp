#include "comm/shm/shared_buffers.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "comm/shm/group_memory.h"

namespace fsdp::comm {
namespace {

constexpr size_t kFew = 16;

}  // namespace

void SharedBuffers::add(const std::shared_ptr<SharedBuffer>& buffer) {
  clear_expired(buffers_.lower_bound(buffer->data()), buffers_.lower_bound(buffer->data() + buffer->data_nbytes()));
  if (buffers_.size() >= 2 * alive_) {
    clear_expired(buffers_.begin(), buffers_.end());
    alive_ = std::max<size_t>(buffers_.size(), kFew);
  }
  buffers_[buffer->data()] = buffer;
}

void SharedBuffers::clear_expired(Buffers::iterator begin, Buffers::iterator end) {
  while (begin != end) begin = begin->second.expired() ? buffers_.erase(begin) : std::next(begin);
}

std::shared_ptr<SharedBuffer> SharedBuffers::at_or_below(const void* address) {
  const auto above = buffers_.upper_bound(static_cast<const char*>(address));
  return above == buffers_.begin() ? nullptr : std::prev(above)->second.lock();
}

std::shared_ptr<SharedBuffer> SharedBuffers::of_slice(const at::Tensor& tensor) {
  auto buffer = at_or_below(tensor.const_data_ptr());
  return buffer && buffer->is_own_slice(tensor) ? buffer : nullptr;
}

std::shared_ptr<SharedBuffer> SharedBuffers::of_whole(const at::Tensor& tensor) {
  auto buffer = at_or_below(tensor.const_data_ptr());
  return buffer && buffer->is_whole(tensor) ? buffer : nullptr;
}

namespace {

// Limits of the memory and the file descriptors taken at a time, while the ranks' private pages still exist.
constexpr int64_t kAtATime = int64_t{256} << 20;
constexpr size_t kFilesAtATime = 64;

using Several = std::vector<std::shared_ptr<SharedBuffer>>;

int64_t staying_nbytes(const SharedBuffer& buffer) {
  return buffer.transient() ? buffer.header_nbytes() : buffer.memory_nbytes();
}

// Returns the next buffers to share together, starting at `begin`.
Several some_of(const Several& buffers, size_t begin) {
  Several some;
  int64_t nbytes = 0;
  for (size_t i = begin; i < buffers.size() && some.size() < kFilesAtATime && (some.empty() || nbytes < kAtATime);
       ++i) {
    some.push_back(buffers[i]);
    nbytes += staying_nbytes(*some.back());
  }
  return some;
}

// Returns the text that a rank sends to the others: the bytes that it needs in addition, and the buffers that it is
// about to share.
std::string offer_of(const Several& buffers, int64_t further) {
  for (const auto& buffer : buffers) further -= buffer->own_nbytes();
  std::string text = std::to_string(further);
  for (const auto& buffer : buffers) text += c10::str(" ", buffer->number(), ":", buffer->memory_nbytes());
  return text;
}

// Returns the bytes needed to share these buffers: their memory and the ranks' additional needs, less the private pages
// that ranks hold for them, which are freed then, plus the part that exists twice meanwhile. Returns none if ranks have
// made different buffers.
std::optional<int64_t> wanting_nbytes(const Several& buffers, const std::vector<std::string>& offers) {
  const auto made = [](const std::string& offer) { return offer.substr(std::min(offer.find(' '), offer.size())); };
  int64_t whole = 0;
  for (const auto& buffer : buffers) whole += staying_nbytes(*buffer);
  int64_t wanting = whole;
  for (const std::string& offer : offers) {
    if (made(offer) != made(offers.front())) return std::nullopt;
    wanting += std::stoll(offer);
  }
  return std::max<int64_t>(wanting, 0) + std::min(whole, kAtATime);
}

// `needed`: bytes that the host must have left for these buffers.
void share_together(const Several& some, int64_t needed, Communicator& group, const CollectiveId& id) {
  std::vector<MemoryRequest> requests;
  for (const auto& buffer : some) requests.push_back({buffer->memory_nbytes(), staying_nbytes(*buffer)});
  auto memories = memories_of_all(group, requests, needed, id);
  for (size_t i = 0; i < some.size(); ++i) some[i]->share(std::move(memories[i]));
}

}  // namespace

void SharedBuffers::share(const std::shared_ptr<SharedBuffer>& buffer, Communicator& group, const CollectiveId& id) {
  share_together({buffer}, buffer->memory_nbytes(), group, id);
}

Several SharedBuffers::not_shared() const {
  Several buffers;
  for (const auto& [address, known] : buffers_) {
    if (auto buffer = known.lock(); buffer && !buffer->is_shared()) buffers.push_back(std::move(buffer));
  }
  std::sort(buffers.begin(), buffers.end(), [](const auto& a, const auto& b) { return a->number() < b->number(); });
  return buffers;
}

void SharedBuffers::share_all(Communicator& group, int64_t further_nbytes, const CollectiveId& id) {
  const Several buffers = not_shared();
  std::optional<int64_t> wanting =
      wanting_nbytes(buffers, group.all_gather_bytes(offer_of(buffers, further_nbytes), id));
  if (!wanting) return;
  for (size_t begin = 0; begin < buffers.size();) {
    const Several some = some_of(buffers, begin);
    share_together(some, std::exchange(*wanting, 0), group, id);
    begin += some.size();
  }
}

}  // namespace fsdp::comm
