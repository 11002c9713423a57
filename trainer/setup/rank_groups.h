// The groups of ranks with which a rank trains.
#pragma once

#include <memory>
#include <optional>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "fsdp/device_mesh.h"

namespace fsdp::trainer {

struct RankGroups {
  std::shared_ptr<Communicator> world;
  // The ranks that take different samples, and that shard and replicate what this rank trains: by default, all.
  std::shared_ptr<Communicator> data;
  std::optional<DeviceMesh> mesh = std::nullopt;  // with a pipeline or tensor parallelism

  // Whether this rank is the first of those that hold the same stage of a pipeline.
  bool is_first_of_stage() const { return data->rank() == 0 && (!mesh || mesh->rank("tp") == 0); }
  // This rank's place in the pipeline.
  int pipeline_rank() const { return mesh ? mesh->rank("pp") : 0; }
};

// Collective with a pipeline or tensor parallelism.
RankGroups make_rank_groups(const Config& config, const std::shared_ptr<Communicator>& world);

}  // namespace fsdp::trainer
