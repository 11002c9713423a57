#include "comm/shm/shared_heap.h"

#include <gtest/gtest.h>

#include <random>

namespace fsdp::comm::shared_heap_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

std::shared_ptr<SharedHeap> make_heap(int64_t nbytes = 64 * kMiB) {
  return std::make_shared<SharedHeap>(SharedMemory::create(nbytes));
}

TEST(SharedHeap, TensorsLieInItsMemoryApart) {
  const auto heap = make_heap();
  std::vector<at::Tensor> tensors;
  for (int64_t nbytes : {0, 1, 63, 64, 65, 4095, 4096, 4097, 100000}) tensors.push_back(heap->take(nbytes));
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].fill_(static_cast<int>(i));
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(tensors[i].eq(static_cast<int>(i)).all().item<bool>());
    const at::Tensor& tensor = tensors[i];
    if (tensor.numel() == 0) continue;  // has no address
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0U);
    EXPECT_EQ(heap->memory().data() + *heap->place_of(tensor), tensor.data_ptr());
  }
  EXPECT_EQ(*heap->place_of(tensors.back().narrow(0, 10, 5)), *heap->place_of(tensors.back()) + 10);
  EXPECT_FALSE(heap->place_of(at::zeros({4}, at::kByte)));
}

TEST(SharedHeap, MemoryIsUsedAgain) {
  const auto heap = make_heap();
  const int64_t first = *heap->place_of(heap->take(kMiB));
  EXPECT_EQ(heap->nbytes_in_use(), 0);
  at::Tensor again = heap->take(kMiB);
  EXPECT_EQ(heap->place_of(again), first);
  at::Tensor view = again.narrow(0, 7, 1);
  again.reset();
  EXPECT_EQ(heap->nbytes_in_use(), kMiB) << "a view refers to it";
  view.reset();
  EXPECT_EQ(heap->nbytes_in_use(), 0);
}

TEST(SharedHeap, HeldMemoryIsNotUsedAgain) {
  const auto heap = make_heap();
  bool read = false, other_read = true;
  at::Tensor tensor = heap->take(kMiB);
  const int64_t place = *heap->place_of(tensor);
  heap->hold(tensor.narrow(0, 100, 1), [&] { return read; });
  heap->hold(tensor, [&] { return other_read; });
  tensor.reset();
  EXPECT_EQ(heap->nbytes_in_use(), kMiB);
  EXPECT_NE(heap->place_of(heap->take(kMiB)), place);
  read = true;
  EXPECT_EQ(heap->place_of(heap->take(kMiB)), place);
}

TEST(SharedHeap, TensorsOutliveTheOwnerOfTheHeap) {
  auto heap = make_heap();
  at::Tensor tensor = heap->take(100);
  heap.reset();
  tensor.fill_(1);
  EXPECT_EQ(tensor.sum().item<int64_t>(), 100);
}

TEST(SharedHeap, TrimGivesBackUnusedMemory) {
  const auto heap = make_heap();
  at::Tensor kept = heap->take(10 * kMiB);
  const int64_t place = *heap->place_of(heap->take(20 * kMiB).fill_(1));
  EXPECT_EQ(heap->memory().data()[place], 1);
  kept.fill_(2);
  heap->trim();
  EXPECT_EQ(heap->memory().data()[place], 0);
  EXPECT_TRUE(kept.eq(2).all().item<bool>());
  EXPECT_EQ(heap->place_of(heap->take(20 * kMiB)), place);
}

TEST(SharedHeap, TrimKeepsSmallAmounts) {
  const auto heap = make_heap();
  const int64_t place = *heap->place_of(heap->take(20 * kMiB).fill_(1));
  heap->trim(20 * kMiB);
  EXPECT_EQ(heap->memory().data()[place], 1);
  heap->trim(20 * kMiB - 1);
  EXPECT_EQ(heap->memory().data()[place], 0);
}

TEST(SharedHeap, TooLittleMemoryIsAnErrorThatLeavesTheRest) {
  const auto heap = make_heap(kMiB);
  at::Tensor kept = heap->take(kMiB / 2).fill_(3);
  EXPECT_ANY_THROW(heap->take(kMiB));
  EXPECT_TRUE(kept.eq(3).all().item<bool>());
  EXPECT_NO_THROW(heap->take(kMiB / 2));
}

// Takes and frees blocks at random: they never overlap, and in the end none is in use.
TEST(SharedHeap, RandomUse) {
  const auto heap = make_heap();
  std::mt19937 random(5);
  std::vector<std::pair<at::Tensor, int>> tensors;
  for (int step = 0; step < 5000; ++step) {
    if (tensors.size() > 40 || (!tensors.empty() && random() % 3 == 0)) {
      const size_t i = random() % tensors.size();
      ASSERT_TRUE(tensors[i].first.eq(tensors[i].second).all().item<bool>()) << "step " << step;
      std::swap(tensors[i], tensors.back());
      tensors.pop_back();
    } else {
      const int value = static_cast<int>(random() % 256);
      tensors.emplace_back(heap->take(static_cast<int64_t>(random() % 20000)).fill_(value), value);
    }
    if (step % 500 == 0) heap->trim();
  }
  tensors.clear();
  EXPECT_EQ(heap->nbytes_in_use(), 0);
}

}  // namespace
}  // namespace fsdp::comm::shared_heap_test
