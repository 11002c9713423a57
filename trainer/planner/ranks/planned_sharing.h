// Memory that the planned rank shares with the other ranks of its host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>

#include "fsdp/memory_sharing.h"

namespace fsdp::planner {

// Of one group, all of whose ranks are on one host. On the tape, this rank has its part of each buffer.
class PlannedSharing final : public MemorySharing {
 public:
  explicit PlannedSharing(int ranks) : ranks_(ranks) {}

  at::Tensor buffer(int64_t nbytes, const SharedBufferOptions& options, const CollectiveId& id) override;
  void await_readers(const at::Tensor& buffer, const CollectiveId& id) override;
  at::Tensor reduction_input(int64_t nbytes) override;
  bool reads_in_place() const override { return true; }

  // A buffer whose address is known. The memory of a transient one exists from the first write to the end of the
  // reading: pages that are kept while a host has plenty of memory are not planned.
  class Buffer {
   public:
    Buffer(const at::Tensor& bytes, int64_t own_nbytes, bool transient)
        : storage_(bytes.storage().getWeakStorageImpl()),
          nbytes_(static_cast<int64_t>(bytes.nbytes())),
          own_nbytes_(own_nbytes),
          transient_(transient) {}
    int64_t nbytes() const { return nbytes_; }
    bool exists() const { return !storage_.expired(); }
    void written();
    void read();

   private:
    c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
    int64_t nbytes_, own_nbytes_;
    bool transient_;
    int64_t memory_ = -1;  // the number of the allocation while the memory exists
  };

  // Returns the buffer in which the tensor lies, or null.
  std::shared_ptr<Buffer> find(const at::Tensor& tensor) const;

 private:
  const int ranks_;
  std::map<const char*, std::shared_ptr<Buffer>> buffers_;  // by address; those that are gone stay until replaced
};

}  // namespace fsdp::planner
