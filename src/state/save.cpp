#include "state/pieces.h"
#include "state/save_target.h"
#include "state/together.h"
#include "state/training_state.h"

namespace fsdp::state {

void save_training_state(const std::filesystem::path& folder, const TrainingState& state, const nlohmann::json& user,
                         Communicator& world) {
  SaveTarget target(folder, world);
  nlohmann::json groups;
  const std::vector<std::string> written = together(world, target.what(), [&] {
    RankPieces pieces = pieces_of(state, world.rank());
    groups = std::move(pieces.groups);
    return target.write(pieces, [&] { state.model.page_out(); });
  });
  together(world, target.what(), [&] {
    target.commit(written, groups, user);
    return std::string();
  });
}

}  // namespace fsdp::state
