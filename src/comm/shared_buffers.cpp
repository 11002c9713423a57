#include "comm/shared_buffers.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "comm/group_memory.h"

namespace fsdp {

void SharedBuffers::add(const std::shared_ptr<SharedBuffer>& buffer) {
  std::erase_if(buffers_, [](const auto& known) { return known.second.expired(); });
  buffers_[buffer->data()] = buffer;
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

// So much, and so many file descriptors, are taken at a time while the ranks' own memory is still there.
constexpr int64_t kAtATime = int64_t{256} << 20;
constexpr size_t kFilesAtATime = 64;

using Buffers = std::vector<std::shared_ptr<SharedBuffer>>;

int64_t staying_nbytes(const SharedBuffer& buffer) {
  return buffer.passing() ? buffer.header_nbytes() : buffer.memory_nbytes();
}

// The next ones to be shared together.
Buffers take_some(Buffers& buffers) {
  Buffers some;
  int64_t nbytes = 0;
  while (!buffers.empty() && some.size() < kFilesAtATime && (some.empty() || nbytes < kAtATime)) {
    some.push_back(buffers.front());
    nbytes += staying_nbytes(*some.back());
    buffers.erase(buffers.begin());
  }
  return some;
}

// What a rank tells the others: bytes that it needs besides, and which buffers it is about to share.
std::string offer_of(const Buffers& buffers, int64_t further) {
  for (const auto& buffer : buffers) further -= buffer->own_nbytes();
  std::string text = std::to_string(further);
  for (const auto& buffer : buffers) text += c10::str(" ", buffer->number(), ":", buffer->memory_nbytes());
  return text;
}

// What is wanting for these: their memory, but for what ranks have of their own, which is free then; some of it twice.
// None where ranks have made different ones.
std::optional<int64_t> wanting_nbytes(const Buffers& buffers, const std::vector<std::string>& offers) {
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

// `needed`: bytes that the host must have left for it.
void share_together(const Buffers& some, int64_t needed, Communicator& group, const CollectiveId& id) {
  std::vector<MemoryRequest> requests;
  for (const auto& buffer : some) requests.push_back({buffer->memory_nbytes(), staying_nbytes(*buffer)});
  auto memories = memories_of_all(group, requests, needed, id);
  for (size_t i = 0; i < some.size(); ++i) some[i]->share(std::move(memories[i]));
}

}  // namespace

void SharedBuffers::share(const std::shared_ptr<SharedBuffer>& buffer, Communicator& group, const CollectiveId& id) {
  share_together({buffer}, buffer->memory_nbytes(), group, id);
}

Buffers SharedBuffers::not_shared() const {
  Buffers buffers;
  for (const auto& [address, known] : buffers_) {
    if (auto buffer = known.lock(); buffer && !buffer->is_shared()) buffers.push_back(std::move(buffer));
  }
  std::sort(buffers.begin(), buffers.end(), [](const auto& a, const auto& b) { return a->number() < b->number(); });
  return buffers;
}

void SharedBuffers::share_all(Communicator& group, int64_t further_nbytes, const CollectiveId& id) {
  Buffers buffers = not_shared();
  std::optional<int64_t> wanting =
      wanting_nbytes(buffers, group.all_gather_bytes(offer_of(buffers, further_nbytes), id));
  if (!wanting) return;
  while (!buffers.empty()) share_together(take_some(buffers), std::exchange(*wanting, 0), group, id);
}

}  // namespace fsdp
