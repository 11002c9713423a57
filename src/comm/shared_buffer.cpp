#include "comm/shared_buffer.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

namespace fsdp {

struct alignas(64) SharedBuffer::Count {
  std::atomic<uint64_t> ended;
};

namespace {

// Without memory until they are written.
char* map_addresses(int64_t nbytes) {
  void* addresses = mmap(nullptr, static_cast<size_t>(nbytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(addresses != MAP_FAILED, "no addresses for a shared buffer of ", nbytes,
              " bytes: ", std::strerror(errno));
  return static_cast<char*>(addresses);
}

}  // namespace

SharedBuffer::SharedBuffer(int rank, int ranks, int64_t nbytes)
    : rank_(rank),
      ranks_(ranks),
      nbytes_(nbytes),
      addresses_(map_addresses(SharedMemory::addresses_nbytes(memory_nbytes()))) {}

SharedBuffer::~SharedBuffer() {
  if (!is_shared()) munmap(addresses_, static_cast<size_t>(SharedMemory::addresses_nbytes(memory_nbytes())));
}

int64_t SharedBuffer::memory_nbytes() const { return static_cast<int64_t>(sizeof(Count)) * ranks_ + nbytes_; }

void SharedBuffer::share(std::shared_ptr<SharedMemory> memory, int number) {
  const std::string slice(own_slice(), static_cast<size_t>(nbytes_ / ranks_));
  memory->move_to(addresses_);
  memory_ = std::move(memory);
  number_ = number;
  std::memcpy(own_slice(), slice.data(), slice.size());
}

SharedBuffer::Count& SharedBuffer::count(int rank) const {
  return reinterpret_cast<Count*>(addresses_ + SharedMemory::kAheadOfMemory)[rank];
}

char* SharedBuffer::data() const {
  return addresses_ + SharedMemory::kAheadOfMemory + sizeof(Count) * static_cast<size_t>(ranks_);
}

at::Tensor SharedBuffer::tensor() {
  return at::from_blob(
      data(), {nbytes_}, [buffer = shared_from_this()](void*) {}, at::kByte);
}

bool SharedBuffer::is_whole(const at::Tensor& tensor) const {
  return tensor.const_data_ptr() == data() && static_cast<int64_t>(tensor.nbytes()) == nbytes_;
}

bool SharedBuffer::is_own_slice(const at::Tensor& tensor) const {
  const int64_t slice = nbytes_ / ranks_;
  return static_cast<int64_t>(tensor.nbytes()) == slice && tensor.const_data_ptr() == own_slice();
}

void SharedBuffer::begin_reading() { ++begun_; }

void SharedBuffer::end_reading() {
  ++ended_;
  if (ended_ == begun_) count(rank_).ended.store(ended_, std::memory_order_release);
}

bool SharedBuffer::has_read(int rank) const { return count(rank).ended.load(std::memory_order_acquire) >= begun_; }

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

}  // namespace fsdp
