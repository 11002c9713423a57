// The store through which the ranks of one group connect, once all of them have come.
#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::comm {

// A part of a store whose waits end when the waits of this process are interrupted (WaitInterrupted), and when another
// rank has given up (RankLost with the reason of that rank).
class GroupStore final : public c10d::PrefixStore {
 public:
  // `place`: the location of the store, for errors.
  GroupStore(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string place);

  std::vector<uint8_t> get(const std::string& key) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

  // Tells the other ranks why this one does not connect. The first reason counts.
  void give_up(const std::string& why);

 private:
  void check_nobody_gave_up();
  [[noreturn]] void fail_interrupted();

  const int rank_;
  const int size_;
  const std::string place_;
};

// Blocks for a moment, in which other ranks read why this rank leaves. For the rank whose process serves the store,
// which ends with it.
void let_others_read(int size);

}  // namespace fsdp::comm
