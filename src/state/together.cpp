#include "state/together.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <exception>
#include <utility>

#include "fsdp/errors.h"
#include "fsdp/mesh.h"

namespace fsdp::state {

namespace {

constexpr char kDone = '+', kFailed = '-';

void add_error(const std::string& error, size_t rank, std::vector<std::pair<std::string, std::vector<size_t>>>& to) {
  for (auto& [known, ranks] : to) {
    if (known != error) continue;
    ranks.push_back(rank);
    return;
  }
  to.push_back({error, {rank}});
}

// An exchange among the ranks of each group, for each rank of an outer group of theirs.
Exchange nested(Exchange outer, Exchange inner) {
  return [outer = std::move(outer), inner = std::move(inner)](const std::string& bytes) {
    std::vector<std::string> all;
    for (const std::string& of_group : outer(bytes)) {
      for (std::string& of_rank : inner(of_group)) all.push_back(std::move(of_rank));
    }
    return all;
  };
}

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

Exchange exchange_in(Communicator& group, const std::string& name) {
  return [&group, name](const std::string& bytes) { return group.all_gather_bytes(bytes, {name, 0, Pass::kUser}); };
}

Exchange exchange_over(const ProcessMesh& mesh, const std::string& name) {
  Exchange exchange = mesh.world ? exchange_in(*mesh.world, name)
                                 : nested(exchange_in(*mesh.replicate, name), exchange_in(*mesh.shard, name));
  return mesh.parts ? nested(exchange_in(*mesh.parts, name), std::move(exchange)) : exchange;
}

std::vector<std::string> agree_on(const Exchange& exchange, const std::string& name, const std::string& outcome) {
  std::vector<std::string> outcomes = exchange(outcome);
  std::vector<std::pair<std::string, std::vector<size_t>>> failed;  // each distinct error, with the ranks that have it
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].empty() || outcomes[rank].front() != kDone) add_error(outcomes[rank].substr(1), rank, failed);
    outcomes[rank].erase(0, 1);
  }
  std::string errors;
  for (const auto& [error, ranks] : failed) {
    errors += c10::str(errors.empty() ? "" : "\n", ranks.size() == 1 ? "rank " : "ranks ", c10::Join(", ", ranks), ": ",
                       error);
  }
  if (!errors.empty()) throw StepFailed({__func__, __FILE__, __LINE__}, c10::str(name, " failed: ", errors));
  return outcomes;
}

std::vector<std::string> together(Communicator& world, const std::string& name,
                                  const std::function<std::string()>& step) {
  return together(exchange_in(world, name), name, step);
}

std::vector<std::string> together(const Exchange& exchange, const std::string& name,
                                  const std::function<std::string()>& step) {
  return agree_on(exchange, name, outcome_of(step));
}

}  // namespace fsdp::state
