// Ends the library's waits for other ranks, for example at Ctrl-C.
//
//   std::signal(SIGINT, [](int) { fsdp::interrupt_waits(); });
//   try {
//     loss.backward();
//   } catch (const fsdp::WaitInterrupted& error) {
//     std::cerr << error.what_without_backtrace() << std::endl;  // this process ends
//   }
//
// A process that does not call these functions waits as long as the timeouts say; signals by themselves change nothing.
#pragma once

namespace fsdp {

// Makes each wait for another rank in this process end with a WaitInterrupted (fsdp/errors.h): those that run, within a
// tenth of a second, and those that begin later. Waits are those for collectives over host memory (Gloo, shared memory,
// several hosts) and for their flags beside NCCL, for readers of shared memory, and for ranks that have yet to come
// when a communicator is made. The group of the wait fails on all ranks, as it does when a rank is lost: the other
// ranks get a RankLost that names this rank, the collective and the interruption. A wait that ends at once, because the
// other ranks have done their part, succeeds.
//
// Four things are not interrupted: work that a device has begun, such as NCCL's kernels, and a host that waits for it;
// NCCL's own calls while NcclOptions::blocking is set; the look-up of a host's name; and a request to a store whose
// process does not answer.
//
// Threads: safe. May be called from a signal handler; it only sets a flag.
void interrupt_waits() noexcept;

// Ends the effect of interrupt_waits(): later waits are as usual. Groups that have failed stay failed. A program that
// handles its signals itself and then continues, such as an interpreter that turns SIGINT into an exception, calls it
// when it has handled the signal. Threads: safe. May be called from a signal handler.
void allow_waits() noexcept;

// Whether interrupt_waits() was called, and allow_waits() not since. Threads: safe. May be called from a signal
// handler.
bool waits_are_interrupted() noexcept;

}  // namespace fsdp
