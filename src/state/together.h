// Steps that either all ranks take or none. A step that fails is a StepFailed (fsdp/errors.h) on all ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp {
struct ProcessMesh;
}  // namespace fsdp

namespace fsdp::state {

// Returns the bytes of each rank on all ranks, in rank order. Collective.
using Exchange = std::function<std::vector<std::string>(const std::string& bytes)>;
// `name` is for errors. The group must outlive the result.
Exchange exchange_in(Communicator& group, const std::string& name);
// An exchange over all ranks of a mesh, even if it has no `world`, and of the parts that other ranks hold. The first
// rank comes first.
Exchange exchange_over(const ProcessMesh& mesh, const std::string& name);

// Runs `step` on this rank and returns the results of all ranks, in rank order. If it threw on any rank, throws
// StepFailed on all ranks; the error names the failed ranks and their messages. Collective: no rank continues before
// all ranks have taken the step.
std::vector<std::string> together(Communicator& world, const std::string& name,
                                  const std::function<std::string()>& step);
std::vector<std::string> together(const Exchange& exchange, const std::string& name,
                                  const std::function<std::string()>& step);

// The two halves of together(). outcome_of returns the result or error of this rank's step as a text for the other
// ranks; it does not communicate. agree_on exchanges and evaluates these texts; it is collective.
std::string outcome_of(const std::function<std::string()>& step);
std::vector<std::string> agree_on(const Exchange& exchange, const std::string& name, const std::string& outcome);

}  // namespace fsdp::state
