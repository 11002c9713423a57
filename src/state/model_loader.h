// Parameters and buffers from any source of tensors.
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

namespace fsdp {

// Before shards are written: units are released, and the device has read what it was to read of shards on the host.
void settle_shards(const ShardedModule& model);

class ModelLoader final : public Loader {
 public:
  // `unsharded`, `split`: what is to be loaded beside the sharded parameters; of split tensors those without state. The
  // source must outlive it.
  ModelLoader(ShardedModule& model, const NamedTensors& unsharded, const TensorSource& source, const Rename& rename,
              const std::vector<SplitTensor>& split = {});

  LoadReport match() override;
  void load(const LoadReport& agreed) override;

 private:
  // A tensor here, and what of it this rank wants.
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
  // Empty: it fits.
  std::vector<Mismatch> mismatches(const Target& target, const std::vector<GivenName>& found) const;
  void read(const Target& target, const at::Tensor& out) const;

  ShardedModule& model_;
  std::vector<HeldPart> parts_;
  std::vector<SharedTensor> unsharded_;
  std::vector<SplitTensor> split_;
  const TensorSource& source_;
  NameMap names_;
  std::map<std::string, std::string> given_;  // of what fits: by the first name here, where to read it
};

}  // namespace fsdp
