// Tests which shared buffer a tensor belongs to, while buffers are made and freed.
#include "comm/shm/shared_buffers.h"
#include "fsdp/memory_sharing.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace fsdp::comm::shared_buffers_test {
namespace {

std::shared_ptr<SharedBuffer> make_buffer(int64_t nbytes) {
  static const auto transient_memory = std::make_shared<TransientMemory>([] { return int64_t{0}; });
  return std::make_shared<SharedBuffer>(SharedBuffer::Place{.rank = 1, .ranks = 2, .name = "rank 1: 'a'"}, nbytes,
                                        SharedBufferOptions{}, transient_memory);
}

at::Tensor slice_of(SharedBuffer& buffer) {
  const at::Tensor whole = buffer.tensor();
  return whole.narrow(0, whole.numel() / 2, whole.numel() / 2);
}

// The addresses of freed buffers are used again, for smaller and for larger ones.
TEST(SharedBuffers, FindsEachThatIsAlive) {
  std::mt19937 random(5);
  SharedBuffers buffers;
  std::map<int, std::shared_ptr<SharedBuffer>> alive;
  for (int round = 0; round < 3000; ++round) {
    const int key = static_cast<int>(random() % 24);
    alive.erase(key);
    if (random() % 4 > 0) {
      alive[key] = make_buffer(4096 * static_cast<int64_t>(2 + random() % 16));
      buffers.add(alive[key]);
    }
    for (const auto& [other, buffer] : alive) {
      ASSERT_EQ(buffers.of_whole(buffer->tensor()), buffer) << "round " << round;
      ASSERT_EQ(buffers.of_slice(slice_of(*buffer)), buffer) << "round " << round;
    }
  }
  EXPECT_EQ(buffers.of_whole(at::zeros({8192}, at::kByte)), nullptr) << "another's memory";
}

}  // namespace
}  // namespace fsdp::comm::shared_buffers_test
