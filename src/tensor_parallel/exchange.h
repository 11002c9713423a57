// How the ranks that hold the parts of a tensor-parallel module exchange activations and their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "flat/part_of_whole.h"
#include "fsdp/communicator.h"

namespace fsdp::tensor_parallel {

// Values of which each rank has some channels (of the last dimension) are *parts*, those of which each rank has a
// summand are *partial*. Values between layers are the same on all ranks; with sequence parallelism (Korthikanti et
// al., 2022, section 4.2.2), each rank has an equal part of their positions instead. The functions of autograd below
// are pairs: the backward of each is the forward of another.
//
// Collective; all block. The ranks compute the same, so they call the same functions in the same order, in forward and
// in backward. Threads: one at a time.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // `sequence_dim`: the dimension of positions. Unset: without sequence parallelism.
  explicit Exchange(std::shared_ptr<Communicator> group, std::optional<int64_t> sequence_dim = std::nullopt)
      : group_(std::move(group)), sequence_dim_(sequence_dim) {
    ++live_;
  }
  ~Exchange() { --live_; }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // How many there are in the process: without any, no parameter is split. Threads: safe.
  static int live() { return live_; }

  const std::shared_ptr<Communicator>& group() const { return group_; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  std::optional<int64_t> sequence_dim() const { return sequence_dim_; }
  // With sequence parallelism: throws unless the positions of `whole` can be cut into equal parts.
  void check_sequence(const at::Tensor& whole) const;

  // -- as part of the graph; `name` names the parameter in errors --

  // Returns values between layers for use by parts: spread(). Backward: combined(). Layers that use the same tensor one
  // after the other get the same result, so that each happens once for all of them.
  at::Tensor enter(const at::Tensor& values, const std::string& name);
  // The inverse: combined(). Backward: spread(). May write to `partial`.
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
  // Adds partial values up. With sequence parallelism, returns this rank's positions of the sum. May write to `partial`
  // in forward.
  at::Tensor combined(const at::Tensor& partial, const std::string& name, Pass pass);
  // Returns values between layers as all ranks use them: as they are, or, with sequence parallelism, of all positions.
  at::Tensor spread(const at::Tensor& values, const std::string& name, Pass pass);
  // Returns all positions along `dim`, of which `mine` are this rank's.
  at::Tensor all_positions(const at::Tensor& mine, int64_t dim, const std::string& name, Pass pass);
  // Returns a copy of this rank's positions along `dim`. Not collective.
  at::Tensor own_positions(const at::Tensor& whole, int64_t dim) const;
  // Returns the whole of a parameter of which `mine` is this rank's part, row-major.
  at::Tensor whole_of(const at::Tensor& mine, const flat::PartOfWhole& part, const std::string& name);
  // Gives all ranks the values of rank `owner`, in place. `values` are dense.
  void share(const at::Tensor& values, int owner, const std::string& name);
  // Returns values of which each rank has some channels.
  at::Tensor gathered(const at::Tensor& mine, const flat::PartOfWhole& part, const std::string& name, Pass pass);
  // Returns the values of all ranks, [ranks, …].
  at::Tensor of_all(const at::Tensor& mine, const std::string& name, Pass pass);

 private:
  // Throws unless the positions of `whole` along `dim` can be cut into equal parts.
  void check_positions(const at::Tensor& whole, int64_t dim) const;
  CollectiveId next_id(std::string name, Pass pass);

  // The last result of enter(). Held weakly, so that activations live no longer than without it; but without a graph,
  // which would hold it, until the layers that use it have been added up.
  struct Entered {
    c10::weak_intrusive_ptr<c10::TensorImpl> values, result;
    int64_t version = 0;
    bool is_recorded = false;
    at::Tensor kept;
  };
  at::Tensor entered_before(const at::Tensor& values) const;

  inline static std::atomic<int> live_{0};
  std::shared_ptr<Communicator> group_;
  std::optional<int64_t> sequence_dim_;
  std::map<Pass, uint64_t> generations_;
  std::unique_ptr<Entered> entered_;
};

}  // namespace fsdp::tensor_parallel
