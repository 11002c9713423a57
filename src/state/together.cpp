#include "state/together.h"

#include <c10/util/Exception.h>

#include <exception>

namespace fsdp {

namespace {

constexpr char kDone = '+', kFailed = '-';

}  // namespace

std::string outcome_of(const std::function<std::string()>& step) {
  try {
    return kDone + step();
  } catch (const c10::Error& error) {
    return kFailed + std::string(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return kFailed + std::string(error.what());
  }
}

std::vector<std::string> agree_on(Communicator& world, const std::string& name, const std::string& outcome) {
  std::vector<std::string> outcomes = world.all_gather_bytes(outcome, {name, 0, Pass::kUser});
  std::string errors;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].empty() || outcomes[rank].front() != kDone) {
      errors += c10::str(errors.empty() ? "" : "\n", "rank ", rank, ": ", outcomes[rank].substr(1));
    }
    outcomes[rank].erase(0, 1);
  }
  if (!errors.empty()) throw StepFailed({__func__, __FILE__, __LINE__}, c10::str(name, " failed: ", errors));
  return outcomes;
}

std::vector<std::string> together(Communicator& world, const std::string& name,
                                  const std::function<std::string()>& step) {
  return agree_on(world, name, outcome_of(step));
}

}  // namespace fsdp
