#include "comm/meeting/group_store.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/interruption.h"
#include "comm/failure.h"
#include "comm/meeting/polling.h"

namespace fsdp::comm {
namespace {

const char* const kGaveUp = "gave_up";  // its value: why
constexpr auto kLongestFarewell = std::chrono::milliseconds(500);

}  // namespace

GroupStore::GroupStore(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string place)
    : PrefixStore("connecting", std::move(store)), rank_(rank), size_(size), place_(std::move(place)) {}

std::vector<uint8_t> GroupStore::get(const std::string& key) {
  wait({key});
  return PrefixStore::get(key);
}

std::vector<std::vector<uint8_t>> GroupStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  return PrefixStore::multiGet(keys);
}

void GroupStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void GroupStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (auto pause = kFirstPoll; !check(keys); pause = std::min(2 * pause, longest_poll(size_))) {
    TORCH_CHECK_WITH(DistStoreError, std::chrono::steady_clock::now() < deadline, "waited ", timeout.count(),
                     " ms in vain for ", c10::Join(", ", keys));
    if (!base::Interruption::sleep_for(pause)) fail_interrupted();
    check_nobody_gave_up();
  }
}

void GroupStore::give_up(const std::string& why) { compareSet(kGaveUp, std::string(), why); }

void GroupStore::check_nobody_gave_up() {
  if (!check({kGaveUp})) return;
  const std::vector<uint8_t> why = PrefixStore::get(kGaveUp);
  Failure{Failure::Kind::kRankLost,
          c10::str("rank ", rank_, " of ", size_, " cannot connect to the others, who met at ", place_, ": ",
                   std::string(why.begin(), why.end()))}
      .raise();
}

void GroupStore::fail_interrupted() {
  Failure{Failure::Kind::kInterrupted,
          c10::str("rank ", rank_, " of ", size_, " was interrupted while it connected to ",
                   "the other ranks, who met at ", place_)}
      .raise();
}

void let_others_read(int size) {
  std::this_thread::sleep_for(
      std::min(2 * std::max(longest_poll(size), base::Interruption::kPeriod), kLongestFarewell));
}

}  // namespace fsdp::comm
