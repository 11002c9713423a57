// The definition of MeetingPoint, for the files of this folder that include c10d.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <utility>

#include "comm/meeting/meeting_point.h"

namespace fsdp::comm {

class StoreBarrier;

class MeetingPoint {
 public:
  // `local_address`: the address of this host on the route to the store.
  MeetingPoint(c10::intrusive_ptr<c10d::Store> store, std::string name, std::string local_address)
      : store_(std::move(store)), name_(std::move(name)), local_address_(std::move(local_address)) {}

  // Registers this rank, waits for the others, and returns the part of the store that belongs to this group alone.
  c10::intrusive_ptr<c10d::Store> join(int rank, int size, std::chrono::milliseconds timeout);

  // The location of the store, for errors: "127.0.0.1:29500", "memory".
  const std::string& name() const { return name_; }
  const std::string& local_address() const { return local_address_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

 private:
  void claim_rank(int rank, int size);
  void agree_on_size(int rank, int size);
  void wait_for_others(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);
  // Tells the other ranks that this one was interrupted, and throws.
  [[noreturn]] void abandon(StoreBarrier& barrier, int rank, int size);

  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  std::string local_address_;
};

}  // namespace fsdp::comm
