// Sources of tensors that the caller has in memory.
#pragma once

#include <map>
#include <string>

#include "fsdp/state_dict.h"
#include "state/tensor_source.h"

namespace fsdp::state {

class WholeTensors final : public TensorSource {
 public:
  explicit WholeTensors(std::map<std::string, at::Tensor> tensors);

  const std::map<std::string, SourceTensor>& tensors() const override { return descriptions_; }
  bool same_elements(const std::string& one, const std::string& other, const WantedElements& wanted) const override;
  void read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const override;

 private:
  std::map<std::string, at::Tensor> values_;
  std::map<std::string, SourceTensor> descriptions_;
};

// The parts of each tensor that were given to this rank. A part that does not fit its tensor is an error that names the
// tensor.
class TensorParts final : public TensorSource {
 public:
  explicit TensorParts(ShardedStateDict tensors);

  const std::map<std::string, SourceTensor>& tensors() const override { return descriptions_; }
  std::string lacking(const std::string& name, int64_t begin, int64_t end) const override;
  void read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const override;

 private:
  ShardedStateDict values_;  // parts are sorted by their elements
  std::map<std::string, SourceTensor> descriptions_;
};

}  // namespace fsdp::state
