// How the ranks that hold the parts of a tensor-parallel module exchange activations and their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "flat/part_of_whole.h"
#include "fsdp/communicator.h"

namespace fsdp::tensor_parallel {

// Values that all ranks have are *whole*, those of which each rank has some channels (of the last dimension) are
// *parts*, and those of which each rank has a summand are *partial*. The functions of autograd below are pairs: the
// backward of each is the forward of another.
//
// Collective; all block. The ranks compute the same, so they call the same functions in the same order, in forward and
// in backward. Threads: one at a time.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  explicit Exchange(std::shared_ptr<Communicator> group) : group_(std::move(group)) { ++live_; }
  ~Exchange() { --live_; }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // How many there are in the process: without any, no parameter is split. Threads: safe.
  static int live() { return live_; }

  const std::shared_ptr<Communicator>& group() const { return group_; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }

  // -- as part of the graph; `name` names the parameter in errors --

  // Returns whole values for use by parts. Forward: nothing. Backward: adds the gradients up. Layers that use the same
  // tensor one after the other get the same result, so that backward adds up once for all of them.
  at::Tensor enter(const at::Tensor& whole, const std::string& name);
  // Adds partial values up. Backward: nothing. May write to `partial`.
  at::Tensor sum(const at::Tensor& partial, const std::string& name);
  // Returns the whole of parts. Backward: takes this rank's part.
  at::Tensor gather(const at::Tensor& mine, const std::shared_ptr<const flat::PartOfWhole>& part,
                    const std::string& name);
  // Returns this rank's part of whole values. Backward: gathers.
  at::Tensor take(const at::Tensor& whole, const std::shared_ptr<const flat::PartOfWhole>& part,
                  const std::string& name);

  // -- without a graph --

  // Adds `values`, which are dense, up over the ranks, in place.
  void add_up(const at::Tensor& values, const std::string& name, Pass pass);
  // Returns the whole of a parameter of which `mine` is this rank's part, row-major.
  at::Tensor whole_of(const at::Tensor& mine, const flat::PartOfWhole& part, const std::string& name);
  // Returns values of which each rank has some channels.
  at::Tensor gathered(const at::Tensor& mine, const flat::PartOfWhole& part, const std::string& name, Pass pass);
  // Returns the values of all ranks, [ranks, …].
  at::Tensor of_all(const at::Tensor& mine, const std::string& name, Pass pass);

 private:
  CollectiveId next_id(std::string name, Pass pass);

  // The last result of enter(). Held weakly, so that activations live no longer than without it.
  struct Entered {
    c10::weak_intrusive_ptr<c10::TensorImpl> whole, result;
    int64_t version = 0;
  };
  at::Tensor entered_before(const at::Tensor& whole) const;

  inline static std::atomic<int> live_{0};
  std::shared_ptr<Communicator> group_;
  std::map<Pass, uint64_t> generations_;
  std::unique_ptr<Entered> entered_;
};

}  // namespace fsdp::tensor_parallel
