#include "planner/ranks/host_payloads.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "base/allocation_tag.h"
#include "comm/collective_header.h"
#include "comm/staged/staging_pool.h"
#include "planner/device/planned_memory.h"

namespace fsdp::planner {
namespace {

using base::AllocationPurpose;
using comm::CollectiveKind;
using Memory = std::vector<at::Tensor>;

bool is_sum(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllReduce;
}

// Takes memory in the order of comm::Exchange, from the same pool.
class GlooPayloads final : public HostPayloads {
 public:
  explicit GlooPayloads(int ranks) : ranks_(ranks) {
    Memory headers;
    for (int i = 0; i < kReservedHeaders; ++i) headers.push_back(take(header_bytes()));
    release(std::move(headers));
  }

  Memory take(const HostCollective& collective) override {
    Memory memory = {take(header_bytes())};
    if (is_sum(collective.kind)) memory.push_back(take((ranks_ - 1) * collective.own_part_bytes));
    return memory;
  }

  void release(Memory memory) override {
    for (at::Tensor& one : memory) pool_.release(std::move(one));
  }

  void trim() override { pool_.trim(); }

 private:
  static constexpr int kReservedHeaders = 12;  // reserve_headers() in comm/gloo/gloo_communicator.cpp

  int64_t header_bytes() const { return ranks_ * comm::kHeaderBytes; }
  at::Tensor take(int64_t nbytes) {
    const base::AllocationTag tag(AllocationPurpose::kCommunication);
    return pool_.take(nbytes);
  }

  const int ranks_;
  comm::StagingPool pool_;
};

class ShmPayloads final : public HostPayloads {
 public:
  Memory take(const HostCollective& collective) override {
    Memory memory;
    if (const at::Tensor& sent = collective.sent; sent.defined() && sent.numel() > 0) {
      const bool in_place =
          is_sum(collective.kind) && PlannedMemory::get().lies_in(Place::kSharedHost, sent.const_data_ptr());
      memory.push_back(in_place ? sent : shared(static_cast<int64_t>(sent.nbytes())));
    }
    if (collective.kind == CollectiveKind::kAllReduce) memory.push_back(shared(collective.own_part_bytes));
    return memory;
  }

  void release(Memory) override {}

 private:
  static at::Tensor shared(int64_t nbytes) {
    const base::AllocationTag tag(AllocationPurpose::kCommunication);
    const PlannedMemory::SharedHostMemory memory(1);
    return at::empty({nbytes}, at::kByte);
  }
};

}  // namespace

std::unique_ptr<HostPayloads> make_gloo_payloads(int ranks) { return std::make_unique<GlooPayloads>(ranks); }

std::unique_ptr<HostPayloads> make_shm_payloads() { return std::make_unique<ShmPayloads>(); }

}  // namespace fsdp::planner
