// The values that parameters and buffers have when they are sharded, made unit by unit.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "frontend/module_parameters.h"
#include "fsdp/mesh.h"
#include "fsdp/options.h"

namespace fsdp {

class InitialValues {
 public:
  // `device`: of the shards. With sync_module_states: throws on all ranks when rank 0 has parameters without values.
  InitialValues(torch::nn::Module& root, const Options& options, const ProcessMesh& mesh, c10::Device device);

  // What is not sharded: these parameters, and the buffers of modules that are not at or below `except`, which move
  // from the host to the device.
  void make_others(const std::vector<at::Tensor>& ignored, const PathSet& except);

  // The values of one unit's parameters, whole; undefined where a parameter holds its own, or has none (meta).
  std::vector<at::Tensor> of(const std::vector<FoundParameter>& parameters);

  // All units are made.
  void finish();

 private:
  bool receives() const { return options_.sync_module_states && mesh_.rank() != 0; }
  void call_param_init_fn(const std::vector<FoundParameter>& parameters);
  at::Tensor broadcast(const at::Tensor& tensor, const at::Tensor& value, const std::string& name, c10::Device device);
  void broadcast_bytes(const at::Tensor& bytes, const std::string& name);

  torch::nn::Module& root_;
  const Options& options_;
  const ProcessMesh& mesh_;
  c10::Device device_;
};

}  // namespace fsdp
