// Loads parameters and buffers from any source of tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "fsdp/split_tensor.h"
#include "state/held_part.h"
#include "state/load_together.h"
#include "state/name_map.h"
#include "state/tensor_source.h"
#include "state/unsharded_tensors.h"

namespace fsdp::state {

// Prepares the model for writes to its shards: releases all units, and waits until the device has finished reading
// shards in host memory.
void settle_shards(const ShardedModule& model);

class ModelLoader final : public Loader {
 public:
  // `unsharded` and `split` are loaded in addition to the sharded parameters; of the split tensors only those that are
  // not optimizer state. Models and source must outlive this object.
  ModelLoader(std::vector<ShardedModule*> models, const NamedTensors& unsharded, const TensorSource& source,
              const Rename& rename, const std::vector<SplitTensor>& split = {}, const Aliases& aliases = {});
  ModelLoader(ShardedModule& model, const NamedTensors& unsharded, const TensorSource& source, const Rename& rename)
      : ModelLoader(std::vector<ShardedModule*>{&model}, unsharded, source, rename) {}

  LoadReport match() override;
  void load(const LoadReport& agreed) override;

 private:
  // A tensor of this model, and the elements of it that this rank wants.
  struct Target {
    std::vector<std::string> names;
    SourceTensor tensor;
    int64_t begin;
    int64_t end;
  };
  static Target target_of(const HeldPart& part);
  static Target target_of(const std::vector<std::string>& names, const at::Tensor& whole);
  static Target target_of(const SplitTensor& tensor);
  void match(const Target& target, LoadReport& report);
  // Returns an empty vector if the target fits.
  std::vector<Mismatch> mismatches(const Target& target, const std::vector<GivenName>& found) const;
  void read(const Target& target, const at::Tensor& out) const;

  std::vector<ShardedModule*> models_;
  std::vector<std::vector<HeldPart>> parts_;  // of each model
  std::vector<SharedTensor> unsharded_;
  std::vector<SplitTensor> split_;
  const TensorSource& source_;
  NameMap names_;
  std::map<std::string, std::string> given_;  // for targets that fit: by first name here, the name to read
};

}  // namespace fsdp::state
