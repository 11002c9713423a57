#include "growth/step_count.h"

namespace fsdp::growth {
namespace {

thread_local int64_t steps = 0;

}  // namespace

int64_t steps_of_this_thread() { return steps; }

void count_step() { ++steps; }

}  // namespace fsdp::growth

// Called by compiler-generated code at each basic block (-fsanitize-coverage=trace-pc).
extern "C" void __sanitizer_cov_trace_pc() { fsdp::growth::count_step(); }
