#include "state/pieces.h"
#include "state/save_target.h"
#include "state/together.h"
#include "state/training_state.h"

namespace fsdp::state {

void save_training_state(const std::filesystem::path& folder, const TrainingState& state, const nlohmann::json& user,
                         Communicator& world) {
  SaveTarget target(folder, world);
  const TiedSavers tied = savers_of_tied(state.parts, state.tied, exchange_in(world, target.what()), target.what());
  const std::vector<std::string> written = together(world, target.what(), [&] {
    return target.write(pieces_of(state, world.rank(), tied), [&] {
      for (const ModelPart& part : state.parts) part.model.page_out();
    });
  });
  together(world, target.what(), [&] {
    target.commit(written, user);
    return std::string();
  });
}

}  // namespace fsdp::state
