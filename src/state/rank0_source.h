// A source that rank 0 has and that all ranks read.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "fsdp/mesh.h"
#include "state/tensor_source.h"
#include "state/together.h"

namespace fsdp::state {

// Returns, on all ranks, what `make` returns on rank 0. If it throws there, all ranks throw. Collective.
nlohmann::json text_of_rank0(const Exchange& exchange, const std::string& name, const ProcessMesh& mesh,
                             const std::function<nlohmann::json()>& make);

// Sends each tensor that is read, as a whole, to all ranks: read() is collective.
class Rank0Tensors final : public TensorSource {
 public:
  // `own`: rank 0's source, null on the other ranks. `description`: describe() of rank 0's source. Tensors are sent
  // through `device`. `mesh` must outlive this object.
  Rank0Tensors(std::shared_ptr<const TensorSource> own, const nlohmann::json& description, const ProcessMesh& mesh,
               c10::Device device);
  static nlohmann::json describe(const TensorSource& source);
  static std::map<std::string, SourceTensor> described(const nlohmann::json& description);

  const std::map<std::string, SourceTensor>& tensors() const override { return tensors_; }
  // Rank 0 compares all elements of both tensors; on the other ranks the result is always true.
  bool same_elements(const std::string& one, const std::string& other, const WantedElements& wanted) const override;
  void read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const override;

 private:
  std::shared_ptr<const TensorSource> own_;
  std::map<std::string, SourceTensor> tensors_;
  const ProcessMesh& mesh_;
  c10::Device device_;
};

}  // namespace fsdp::state
