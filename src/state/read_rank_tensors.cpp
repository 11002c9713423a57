#include <ATen/ops/empty.h>

#include "checkpoint/checkpoint_folder.h"
#include "state/leaf_names.h"
#include "state/together.h"
#include "state/training_state.h"

namespace fsdp {

std::map<std::string, at::Tensor> read_rank_tensors(const std::filesystem::path& folder, Communicator& world) {
  std::map<std::string, at::Tensor> tensors;
  together(world, "loading the checkpoint " + folder.string(), [&] {
    const checkpoint::CheckpointFolder saved(folder);
    const auto& stored = saved.manifest().tensors;
    // One file of each rank.
    if (saved.manifest().files.size() != static_cast<size_t>(world.size())) return std::string();
    const std::string prefix = rank_name(world.rank(), "");
    for (auto it = stored.lower_bound(prefix); it != stored.end() && it->first.rfind(prefix, 0) == 0; ++it) {
      const at::Tensor flat = at::empty({it->second.numel()}, at::TensorOptions(it->second.dtype));
      saved.read(it->first, 0, flat.numel(), flat);
      tensors[it->first.substr(prefix.size())] = flat.view(it->second.shape);
    }
    return std::string();
  });
  return tensors;
}

}  // namespace fsdp
