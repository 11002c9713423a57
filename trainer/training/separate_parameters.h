// Parameters of a model that fully_shard knows nothing of.
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

// They bring gradients, an optimizer and files of their own: rows of embedding tables that are split over ranks, say.
// Gradients are, like those of shards, the sum over ranks divided by the config's gradient_divide_factor.
class SeparateParameters {
 public:
  virtual ~SeparateParameters() = default;

  // Makes them, on `device`, with initial values, or with those that save() left in `folder`. Once, before the model is
  // sharded or run. Collective.
  virtual void make(const std::shared_ptr<Communicator>& ranks, c10::Device device,
                    const std::optional<std::filesystem::path>& folder) = 0;
  // Writes this rank's files into `folder`, in which those of all ranks come to lie. Not collective.
  virtual void save(const std::filesystem::path& folder) const = 0;

  // After warm-up.
  virtual double learning_rate() const = 0;
  virtual void zero_grad() = 0;
  // The 2-norm of their gradients over all ranks, in fp64, so that it is finite if and only if all of them are.
  // Collective.
  virtual double grad_norm() const = 0;
  // Takes an optimizer step with gradient_scale times the gradients. Not collective.
  virtual void step(double learning_rate, double gradient_scale) = 0;

  // What checkpoints of the run hold of them and of their optimizer's state, to be read or written.
  virtual std::vector<SplitTensor> split_tensors() const = 0;
  // What they take on this rank.
  virtual std::vector<MemoryCategory> memory() const = 0;
};

}  // namespace fsdp::trainer
