// An in-memory store that counts the requests of this library and those of Gloo while it connects its ranks.
#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace fsdp::testing {

class CountingStore : public c10d::HashStore {
 public:
  // Counts over all ranks. Looks (`check`), which ranks repeat until the others have arrived, are counted separately:
  // their number depends on timing, but the set of keys does not.
  struct Counts {
    std::atomic<int64_t> requests = 0, looks = 0, bytes = 0;
  };
  Counts ours, gloo;
  int64_t requests() const { return ours.requests + gloo.requests; }
  int64_t looks() const { return ours.looks + gloo.looks; }
  size_t keys_looked_at() const { return looked_at_.size(); }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    count(key, value.size());
    HashStore::set(key, value);
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    count(key, expected.size() + desired.size());
    return HashStore::compareSet(key, expected, desired);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    std::vector<uint8_t> value = HashStore::get(key);
    count(key, value.size());
    return value;
  }
  int64_t add(const std::string& key, int64_t value) override {
    count(key, sizeof(value));
    return HashStore::add(key, value);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) count(key, 0);
    HashStore::wait(keys, timeout);
  }
  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      ++of(key).looks;
      of(key).bytes += static_cast<int64_t>(key.size());
    }
    std::lock_guard<std::mutex> lock(mutex_);
    looked_at_.insert(keys.begin(), keys.end());
    return HashStore::check(keys);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    auto values = HashStore::multiGet(keys);
    for (size_t i = 0; i < keys.size(); ++i) count(keys[i], values[i].size());
    return values;
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override {
    for (size_t i = 0; i < keys.size(); ++i) count(keys[i], values[i].size());
    HashStore::multiSet(keys, values);
  }
  void append(const std::string& key, const std::vector<uint8_t>& value) override {
    count(key, value.size());
    HashStore::append(key, value);
  }

 private:
  Counts& of(const std::string& key) {
    for (const char* part : {"/owner", "/visits", "size", "present/", "arrived/", "complete", "watchdog/"}) {
      if (key.find(part) != std::string::npos) return ours;
    }
    return gloo;
  }
  void count(const std::string& key, size_t value_nbytes) {
    ++of(key).requests;
    of(key).bytes += static_cast<int64_t>(key.size() + value_nbytes);
  }

  std::mutex mutex_;
  std::set<std::string> looked_at_;
};

}  // namespace fsdp::testing
