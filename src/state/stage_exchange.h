// Passes whole tensors from the ranks of a pipeline on to rank 0, or to all of them, one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "fsdp/communicator.h"
#include "state/tensor_source.h"

namespace fsdp::state {

// A whole tensor, and all names that it has.
struct StageTensor {
  std::vector<std::string> names;
  SourceTensor tensor;
};

class StageExchange {
 public:
  using Take = std::function<void(const std::vector<std::string>& names, const at::Tensor& tensor)>;
  // Calls its argument with each tensor of this rank, in any order.
  using VisitOwn = std::function<void(const Take& take)>;

  // `device`: that of tensors which the pipeline's group takes. `own`: all tensors of this rank's stages. Collective
  // over the pipeline.
  StageExchange(Communicator& pipeline, c10::Device device, const std::vector<StageTensor>& own);

  // Those of all ranks, in the order of ranks.
  std::vector<StageTensor> all() const;

  // Calls `take` on rank 0 with each tensor of all ranks, its own ones first. A sender waits until rank 0 has taken its
  // tensor, so that neither side holds more than one. Tensors are valid during the call. Collective over the pipeline.
  void to_rank_0(const VisitOwn& visit_own, const Take& take);
  // Calls `take` on all ranks with each tensor of all ranks, in the order of ranks.
  void to_all(const VisitOwn& visit_own, const Take& take);

 private:
  at::Tensor number(int64_t value) const;
  int64_t place_of(const std::vector<std::string>& names) const;
  const StageTensor& sent(int rank, const at::Tensor& place) const;
  at::Tensor elements(const SourceTensor& tensor) const;

  Communicator& pipeline_;
  c10::Device device_;
  std::vector<std::vector<StageTensor>> of_rank_;
};

}  // namespace fsdp::state
