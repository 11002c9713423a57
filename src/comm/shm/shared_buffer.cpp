#include "comm/shm/shared_buffer.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "comm/shm/resident_pages.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::comm {

struct alignas(64) SharedBuffer::Count {
  std::atomic<uint64_t> ended;
};

// Counts the ends of readings, over all ranks, and how often the memory was released after one.
struct alignas(64) SharedBuffer::Ends {
  std::atomic<uint64_t> count;
  std::atomic<uint64_t> releases;
};

namespace {

int64_t in_pages(int64_t nbytes) {
  return (nbytes + SharedMemory::kPage - 1) / SharedMemory::kPage * SharedMemory::kPage;
}

// Reserves addresses, which take no memory until they are written.
char* map_addresses(int64_t nbytes) {
  void* addresses = mmap(nullptr, static_cast<size_t>(nbytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(addresses != MAP_FAILED, "no addresses for a shared buffer of ", nbytes,
              " bytes: ", std::strerror(errno));
  return static_cast<char*>(addresses);
}

}  // namespace

SharedBuffer::SharedBuffer(Place place, int64_t nbytes, const SharedBufferOptions& options,
                           std::shared_ptr<TransientMemory> transient_memory)
    : place_(std::move(place)),
      nbytes_(nbytes),
      options_(options),
      transient_memory_(std::move(transient_memory)),
      addresses_(map_addresses(SharedMemory::addresses_nbytes(memory_nbytes()))) {
  if (options_.read_only) {
    read_only_.emplace(data(), static_cast<size_t>(data_nbytes()),
                       "fsdp: " + place_.name +
                           ": a write to gathered parameters, which other ranks read in the same memory, by code that "
                           "bypasses the dispatcher (data_ptr): write inside ShardedModule::with_full_params");
  }
}

SharedBuffer::~SharedBuffer() {
  read_only_.reset();
  if (is_shared() && transient()) transient_memory_->nbytes -= data_nbytes();
  if (!is_shared()) munmap(addresses_, static_cast<size_t>(SharedMemory::addresses_nbytes(memory_nbytes())));
}

int64_t SharedBuffer::header_nbytes() const {
  return in_pages(static_cast<int64_t>(sizeof(Ends) + sizeof(Count) * static_cast<size_t>(place_.ranks)));
}

int64_t SharedBuffer::data_nbytes() const { return in_pages(nbytes_); }

void SharedBuffer::share(std::shared_ptr<SharedMemory> memory) {
  std::string slice;
  // Otherwise nothing was written yet, and a rank that has shared the buffer before may be writing it already.
  if (!options_.any_part) slice.assign(own_slice(), static_cast<size_t>(nbytes_ / place_.ranks));
  memory->move_to(addresses_);
  memory_ = std::move(memory);
  std::memcpy(own_slice(), slice.data(), slice.size());
  if (transient()) transient_memory_->nbytes += data_nbytes();
}

int64_t SharedBuffer::own_nbytes() const { return is_shared() ? 0 : resident_nbytes(data(), data_nbytes()); }

SharedBuffer::Ends& SharedBuffer::ends() const { return *reinterpret_cast<Ends*>(addresses_ + SharedMemory::kPage); }

SharedBuffer::Count& SharedBuffer::count(int rank) const { return reinterpret_cast<Count*>(&ends() + 1)[rank]; }

char* SharedBuffer::data() const { return addresses_ + SharedMemory::kPage + header_nbytes(); }

at::Tensor SharedBuffer::tensor() {
  return at::from_blob(data(), {nbytes_}, [buffer = shared_from_this()](void*) {}, at::kByte);
}

bool SharedBuffer::is_whole(const at::Tensor& tensor) const {
  return tensor.const_data_ptr() == data() && static_cast<int64_t>(tensor.nbytes()) == nbytes_;
}

bool SharedBuffer::is_own_slice(const at::Tensor& tensor) const {
  const int64_t slice = nbytes_ / place_.ranks;
  return static_cast<int64_t>(tensor.nbytes()) == slice && tensor.const_data_ptr() == own_slice();
}

void SharedBuffer::begin_reading() {
  TORCH_CHECK(!transient() || !is_reading(), place_.name,
              ": a transient buffer is read again before the previous reading has ended");
  ++begun_;
}

void SharedBuffer::protect() {
  if (read_only_) read_only_->set_read_only(true);
}

void SharedBuffer::end_reading() {
  ++ended_;
  if (ended_ != begun_) return;
  if (read_only_) read_only_->set_read_only(false);
  if (transient()) release_if_last();
  count(place_.rank).ended.store(ended_, std::memory_order_release);
}

void SharedBuffer::release_if_last() {
  const uint64_t ended_by_all = ends().count.fetch_add(1, std::memory_order_acq_rel) + 1;
  const bool last = ended_by_all == ended_ * static_cast<uint64_t>(place_.ranks);
  if (!last || transient_memory_->stays()) return;
  memory_->release(header_nbytes(), data_nbytes());
  ends().releases.fetch_add(1, std::memory_order_relaxed);  // published by the count of this rank
}

bool SharedBuffer::has_read(int rank) const { return count(rank).ended.load(std::memory_order_acquire) >= begun_; }

bool SharedBuffer::keeps_contents() {
  const uint64_t releases = ends().releases.load(std::memory_order_relaxed);
  return std::exchange(known_releases_, releases) == releases;
}

}  // namespace fsdp::comm
