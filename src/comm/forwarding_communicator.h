// A communicator that forwards every call to another one: the base of wrappers, which override what they change.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/communicator.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::comm {

// Subgroups and twins are those of the inner communicator: a wrapper that must see their collectives, too, wraps them.
// Threads: as the inner communicator.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  const std::shared_ptr<Communicator>& inner() const { return inner_; }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string backend() const override { return inner_->backend(); }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override {
    return inner_->all_gather(std::move(output), std::move(input), id);
  }
  bool gathers_ranges() const override { return inner_->gathers_ranges(); }
  std::unique_ptr<Work> all_gather_ranges(at::Tensor tensor, const RankRanges& ranges,
                                          const CollectiveId& id) override {
    return inner_->all_gather_ranges(std::move(tensor), ranges, id);
  }
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override {
    return inner_->reduce_scatter(std::move(output), std::move(input), options, id, flags);
  }
  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>* flags = nullptr) override {
    return inner_->all_reduce(std::move(output), std::move(tensor), options, id, flags);
  }
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override {
    return inner_->broadcast(std::move(tensor), root, id);
  }
  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override {
    return inner_->all_to_all(std::move(output), std::move(input), counts, id);
  }
  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override {
    return inner_->send(std::move(tensor), to, id);
  }
  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override {
    return inner_->recv(std::move(output), from, id);
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override {
    return inner_->all_gather_bytes(bytes, id);
  }
  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override {
    return inner_->subgroup(members, id);
  }
  std::shared_ptr<Communicator> twin() override { return inner_->twin(); }
  bool carries_identity() const override { return inner_->carries_identity(); }
  std::shared_ptr<MeetingPoint> meeting_point() const override { return inner_->meeting_point(); }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }
  int world_rank(int rank) const override { return inner_->world_rank(rank); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  void trim() override { inner_->trim(); }
  MemorySharing& memory_sharing() override { return inner_->memory_sharing(); }
  std::vector<uint64_t> bytes_sent_to() const override { return inner_->bytes_sent_to(); }

 private:
  const std::shared_ptr<Communicator> inner_;
};

}  // namespace fsdp::comm
