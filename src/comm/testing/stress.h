// Issues collectives of all kinds, chosen at random, on ranks that are early or late at random.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/communicator.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::testing {

// Ranks with the same seed issue the same collectives. The test fails if a result is wrong.
class Stress {
 public:
  Stress(Communicator& comm, unsigned seed)
      : comm_(comm), same_(seed), own_(seed + 1 + static_cast<unsigned>(comm.rank())) {
    for (const bool transient : {false, true}) {
      constexpr int64_t kNumel = 5000;
      const at::Tensor bytes = comm_.memory_sharing().buffer(kNumel * 4 * comm_.size(),
                                                             {.transient = transient, .read_only = true}, id("buffer"));
      if (bytes.defined()) buffers_.push_back(bytes.view(at::kFloat));
    }
  }

  void round() {
    ++generation_;
    const auto numel = static_cast<int64_t>(same_() % 20000);
    switch (same_() % 6) {
      case 0:
        return gather(numel);
      case 1:
        return reduce_scatter(numel);
      case 2:
        return all_reduce(numel);
      case 3:
        return bytes(static_cast<size_t>(numel));
      case 4:
        return several(numel);
      default:
        for (at::Tensor& buffer : buffers_) share(buffer);
    }
  }

 private:
  CollectiveId id(const std::string& name) const { return {name, generation_, Pass::kUser}; }
  float value(int rank) const { return static_cast<float>(rank + 1) * static_cast<float>(generation_ % 97); }
  float sum() const { return value(0) * static_cast<float>(comm_.size() * (comm_.size() + 1) / 2); }
  at::Tensor mine(int64_t numel) const { return torch::full({numel}, value(comm_.rank())); }

  void delay() {
    const unsigned draw = own_() % 64;
    if (draw == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    if (draw < 16) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 300));
  }
  void wait(Work& work) {
    delay();
    work.wait();
    delay();
  }
  void expect_gathered(const at::Tensor& all) const {
    const int64_t n = all.numel() / comm_.size();
    for (int rank = 0; rank < comm_.size(); ++rank) {
      ASSERT_TRUE(all.narrow(0, rank * n, n).eq(value(rank)).all().item<bool>()) << "round " << generation_;
    }
  }
  static void expect_all(const at::Tensor& tensor, float value) { ASSERT_TRUE(tensor.eq(value).all().item<bool>()); }

  void gather(int64_t numel) {
    at::Tensor all = torch::empty({numel * comm_.size()});
    wait(*comm_.all_gather(all, mine(numel), id("gather")));
    expect_gathered(all);
  }
  // Returns an input in memory that other ranks may read.
  at::Tensor input(int64_t numel) {
    const at::Tensor bytes = comm_.memory_sharing().reduction_input(std::max<int64_t>(numel, 1) * 4);
    return bytes.view(at::kFloat).narrow(0, 0, numel).fill_(value(comm_.rank()));
  }
  std::unique_ptr<Work> issue_reduce_scatter(const at::Tensor& output) {
    const int64_t numel = output.numel() * comm_.size();
    const at::Tensor input =
        comm_.memory_sharing().reduction_input(std::max<int64_t>(numel, 1) * 4).view(at::kFloat).narrow(0, 0, numel);
    input.fill_(value(comm_.rank()));
    return comm_.reduce_scatter(output, input, {}, id("reduce-scatter"));
  }
  void reduce_scatter(int64_t numel) {
    const at::Tensor output = torch::empty({numel});
    wait(*issue_reduce_scatter(output));
    expect_all(output, sum());
  }
  void all_reduce(int64_t numel) {
    const at::Tensor tensor = input(numel);
    const auto work = comm_.all_reduce(tensor, tensor, {}, id("all-reduce"));
    delay();
    if (own_() % 2 == 0) work->advance();
    wait(*work);
    expect_all(tensor, sum());
    tensor.fill_(-1);
  }
  void bytes(size_t length) {
    const std::string text(length, static_cast<char>('a' + comm_.rank()));
    const std::vector<std::string> all = comm_.all_gather_bytes(text, id("bytes"));
    for (int rank = 0; rank < comm_.size(); ++rank) {
      ASSERT_EQ(all[static_cast<size_t>(rank)], std::string(length, static_cast<char>('a' + rank)));
    }
  }
  // Issues several collectives before it waits for them, in this rank's own order.
  void several(int64_t numel) {
    at::Tensor all = torch::empty({numel * comm_.size()});
    const at::Tensor scattered = torch::empty({numel}), reduced = mine(numel);
    std::vector<std::unique_ptr<Work>> works;
    works.push_back(comm_.all_gather(all, mine(numel), id("gather")));
    works.push_back(comm_.all_reduce(reduced, reduced, {}, id("all-reduce")));
    delay();
    works.push_back(issue_reduce_scatter(scattered));
    std::shuffle(works.begin(), works.end(), own_);
    for (const auto& work : works) wait(*work);
    expect_gathered(all);
    expect_all(scattered, sum());
    expect_all(reduced, sum());
  }
  void share(at::Tensor& buffer) {
    const int64_t n = buffer.numel() / comm_.size();
    const at::Tensor own = buffer.narrow(0, comm_.rank() * n, n);
    comm_.memory_sharing().await_readers(buffer, id("write"));
    own.fill_(value(comm_.rank()));
    delay();
    const auto reading = comm_.all_gather(buffer, own, id("read"));
    wait(*reading);
    expect_gathered(buffer);
  }

  Communicator& comm_;
  std::mt19937 same_;
  std::mt19937 own_;
  uint64_t generation_ = 0;
  std::vector<at::Tensor> buffers_;
};

}  // namespace fsdp::testing
