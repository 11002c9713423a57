// Parameters of a model that fully_shard does not manage.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/communicator.h"
#include "fsdp/fully_shard.h"
#include "fsdp/split_tensor.h"

namespace fsdp::trainer {

// Parameters with their own gradients, optimizer and files, such as rows of embedding tables that are split over ranks.
// Like the gradients of shards, their gradients are the sum over ranks divided by the config's gradient_divide_factor.
class SeparateParameters {
 public:
  virtual ~SeparateParameters() = default;

  // Creates the parameters on `device`, with initial values or with the values that save() wrote to `folder`. Must be
  // called once, before the model is sharded or run. Collective.
  virtual void make(const std::shared_ptr<Communicator>& ranks, c10::Device device,
                    const std::optional<std::filesystem::path>& folder) = 0;
  // Writes this rank's files into `folder`, which receives the files of all ranks. Not collective.
  virtual void save(const std::filesystem::path& folder) const = 0;

  // Returns the learning rate after warm-up.
  virtual double learning_rate() const = 0;
  virtual void zero_grad() = 0;
  // Returns the 2-norm of the gradients over all ranks, in fp64, so that it is finite if and only if all gradients are.
  // Collective.
  virtual double grad_norm() const = 0;
  // Takes an optimizer step with `gradient_scale` times the gradients. Not collective.
  virtual void step(double learning_rate, double gradient_scale) = 0;

  // Returns the tensors of these parameters and of their optimizer's state that checkpoints of the run read and write.
  virtual std::vector<SplitTensor> split_tensors() const = 0;
  // Returns the memory that the parameters, their gradients and optimizer state take on this rank.
  virtual std::vector<MemoryCategory> memory() const = 0;
};

}  // namespace fsdp::trainer
