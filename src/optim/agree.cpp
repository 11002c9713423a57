#include "optim/agree.h"

#include <algorithm>

#include "engine/engine.h"

namespace fsdp {

bool any_rank(Engine& engine, bool mine, const std::string& purpose) {
  const std::string yes(1, '\1'), no(1, '\0');
  const auto answers = engine.communicator().all_gather_bytes(mine ? yes : no, {purpose, 0, Pass::kUser});
  return std::find(answers.begin(), answers.end(), yes) != answers.end();
}

}  // namespace fsdp
