#include "fuzz_training/run_case.h"

#include <c10/util/Exception.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error_message.h"
#include "fuzz_training/one_process_run.h"
#include "fuzz_training/rules.h"
#include "fuzz_training/sharded_run.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::fuzz {
namespace {

// The results of the ranks, for the comparison.
struct Outcome {
  std::vector<Record> of_rank;
  LeafNames leaves;
  ExecutionOrder order;
};

// The parameters of a sharded run.
struct Run {
  const Case& training;
  std::string folder;
  std::chrono::milliseconds timeout;

  testing::RankOptions rank_options() const { return {.timeout = timeout, .communicator = training.communicator}; }
};

// Returns the number of steps before the run moves to other ranks, or of all steps if it does not move.
int64_t steps_before(const Case& training) {
  const int64_t all = training.steps.size();
  return training.move_after > 0 ? std::min(training.move_after, all) : all;
}

void run_first_ranks(const Run& plan, Outcome& outcome) {
  const Case& training = plan.training;
  testing::run_ranks(
      training.ranks,
      [&](std::shared_ptr<Communicator> world) {
        ShardedRun run(training, world, {}, outcome.of_rank[world->rank()]);
        for (int64_t step = 0; step < steps_before(training); ++step) run.run_step(step);
        run.note_whole_parameters("end");
        if (training.move_after > 0) run.save(plan.folder);
        if (world->rank() != 0) return;
        outcome.leaves = run.leaf_names();
        outcome.order = run.execution_order();
      },
      plan.rank_options());
}

void run_later_ranks(const Run& plan, Outcome& outcome) {
  const Case& training = plan.training;
  testing::run_ranks(
      training.ranks_later,
      [&](std::shared_ptr<Communicator> world) {
        ShardedRun run(training, world, outcome.order, outcome.of_rank[world->rank()]);
        run.load(plan.folder);
        run.note_whole_parameters("moved");
        const int64_t all = training.steps.size();
        for (int64_t step = training.move_after; step < all; ++step) run.run_step(step);
        run.note_whole_parameters("end after the move");
      },
      plan.rank_options());
}

Outcome run_sharded(const Case& training, std::chrono::milliseconds timeout) {
  const testing::TemporaryFolder folder;
  const Run plan{training, folder.path("run"), timeout};
  Outcome outcome;
  outcome.of_rank.resize(std::max(training.ranks, training.ranks_later));
  run_first_ranks(plan, outcome);
  if (training.move_after > 0) run_later_ranks(plan, outcome);
  return outcome;
}

Expected run_in_one_process(const Case& training, const LeafNames& leaves) {
  OneProcessRun run(training, leaves);
  for (int64_t step = 0; step < steps_before(training); ++step) run.run_step(step);
  run.note_whole_parameters("end");
  if (training.move_after > 0) {
    run.move_to(training.ranks_later);
    run.note_whole_parameters("moved");
    const int64_t all = training.steps.size();
    for (int64_t step = training.move_after; step < all; ++step) run.run_step(step);
    run.note_whole_parameters("end after the move");
  }
  return run.expected();
}

// Calls MKL's vector functions once. MKL chooses their implementation at the first call, and may choose less accurate
// ones if several threads make that call at the same time.
void settle_math_library() {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor x = at::linspace(0.1, 0.9, 64, dtype);
    for (const at::Tensor& y : {x.sin(), x.cos(), x.exp(), x.log(), x.tanh(), x.erf(), x.sqrt(), x.pow(3)}) (void)y;
    (void)(at::gelu(x).sum() + at::silu(x).sum() + at::sigmoid(x).sum() + at::softmax(x, 0).sum());
  }
}

// Returns the kind of tensor in a name such as "step 1: gradient of layer0.weight", or the action that recorded it.
std::string kind_of(const std::string& name) {
  const size_t colon = name.rfind(": ");
  const size_t action = name.find('(');
  if (action != std::string::npos) return name.substr(action + 1, name.find(')') - action - 1);
  const std::string what = colon == std::string::npos ? name : name.substr(colon + 2);
  return what.substr(0, what.find(' '));
}

Verdict compare(const Case& training, const Outcome& outcome, const Expected& expected) {
  for (size_t rank = 0; rank < outcome.of_rank.size(); ++rank) {
    const auto difference =
        first_difference(outcome.of_rank[rank], rank, expected.of_rank[rank], expected.of_all, tolerance(training));
    if (!difference) continue;
    return {false, "difference: " + kind_of(difference->name),
            difference->name + " of rank " + std::to_string(rank) + ": " + difference->text};
  }
  return {true, "", ""};
}

// Returns an error message without the parts that differ from run to run: digits, and everything from the first quoted
// name on.
std::string way_of_error(const std::string& message) {
  std::string way;
  for (char c : message.substr(0, 160)) {
    if (!std::isdigit(static_cast<unsigned char>(c))) way += c;
  }
  const size_t quote = way.find('\'');
  return "error: " + way.substr(0, std::min<size_t>(quote, 70));
}

}  // namespace

Verdict run_case(const Case& training, std::chrono::milliseconds timeout) {
  try {
    settle_math_library();
    const Outcome outcome = run_sharded(training, timeout);
    return compare(training, outcome, run_in_one_process(training, outcome.leaves));
  } catch (const std::exception& error) {
    const std::string message = base::message_of(error);
    return {false, way_of_error(message), message};
  }
}

}  // namespace fsdp::fuzz
