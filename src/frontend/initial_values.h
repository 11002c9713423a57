// Makes the values that parameters and buffers have when they are sharded, unit by unit.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "frontend/module_parameters.h"
#include "fsdp/mesh.h"
#include "fsdp/options.h"

namespace fsdp::frontend {

class InitialValues {
 public:
  // `device` is the compute device: buffers move to it, and missing values are made on it. With sync_module_states,
  // throws on all ranks if rank 0 has parameters without values.
  InitialValues(torch::nn::Module& root, const Options& options, const ProcessMesh& mesh, c10::Device device);

  // Makes the values of the parameters `ignored`, which are not sharded, and of the buffers of modules that are not at
  // or below `except`. Buffers move from the host to the device.
  void make_others(const std::vector<at::Tensor>& ignored, const PathSet& except);

  // Returns the full values of one unit's parameters; undefined if a parameter holds its own value, or has none (meta).
  std::vector<at::Tensor> of(const std::vector<FoundParameter>& parameters);

  // Call after all units are made.
  void finish();

 private:
  bool receives() const { return options_.sync_module_states && !mesh_.is_first(); }
  void call_param_init_fn(const std::vector<FoundParameter>& parameters);
  at::Tensor broadcast(const at::Tensor& tensor, const at::Tensor& value, const std::string& name, c10::Device device);
  void broadcast_bytes(const at::Tensor& bytes, const std::string& name);

  torch::nn::Module& root_;
  const Options& options_;
  const ProcessMesh& mesh_;
  c10::Device device_;
};

}  // namespace fsdp::frontend
