// Steps that all ranks take, or none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "fsdp/communicator.h"

namespace fsdp {

// All ranks have the same error, and know that: one of them may speak for all.
class ErrorOfAllRanks : public c10::Error {
 public:
  using c10::Error::Error;
};

// A step failed on some ranks; all of them know, and can go on together.
class StepFailed : public ErrorOfAllRanks {
 public:
  using ErrorOfAllRanks::ErrorOfAllRanks;
};

struct ProcessMesh;

// Gives the bytes of each rank to all, in rank order. Collective.
using Exchange = std::function<std::vector<std::string>(const std::string& bytes)>;
// `name`: for errors. The group must outlive it.
Exchange exchange_in(Communicator& group, const std::string& name);
// Over all ranks of a mesh, also where it has no `world`.
Exchange exchange_over(const ProcessMesh& mesh, const std::string& name);

// Runs `step` on this rank and returns what it returned on each, in rank order. If it threw on any rank, throws
// StepFailed on all: an error that names the ranks and what each said. Collective: no rank goes on before all have
// taken the step.
std::vector<std::string> together(Communicator& world, const std::string& name,
                                  const std::function<std::string()>& step);
std::vector<std::string> together(const Exchange& exchange, const std::string& name,
                                  const std::function<std::string()>& step);

// Its two halves: what this rank's step came to, errors included, as a text for the other ranks; and what all ranks
// make of these. The second is collective, the first touches no other rank.
std::string outcome_of(const std::function<std::string()>& step);
std::vector<std::string> agree_on(const Exchange& exchange, const std::string& name, const std::string& outcome);

}  // namespace fsdp
