// The errors that a program may want to tell apart. docs/errors.md lists all kinds.
//
//   try {
//     optimizer_step();
//   } catch (const fsdp::RankLost& error) {  // begin again from the last checkpoint
//     std::cerr << error.what_without_backtrace() << std::endl;
//   }
//
// All of them are c10::Error, as LibTorch's own errors are, so what() may end with a C++ backtrace, and
// what_without_backtrace() is the message alone. Other errors of this library are plain c10::Error: a wrong argument,
// an operation that sharding does not support, a broken rule of use. Out of memory is c10::OutOfMemoryError, or
// std::bad_alloc where the C++ library allocates.
//
// Threads: an error may be copied to another thread and rethrown there, as std::exception_ptr does it.
#pragma once

#include <c10/util/Exception.h>

namespace fsdp {

// A collective failed, and with it its group and the groups made from that: later collectives throw as well, on all
// ranks that the backend can notify. Thrown by the calls of Communicator and Work, and by all that communicate through
// them: forward, backward, an optimizer step, a save. The message names this rank, the other one and the collective.
// The program cannot continue on this communicator; it ends, or makes a new one. As an error of torch.distributed, it
// is a c10::DistBackendError. Implementations of Communicator should throw it, too.
//
//   catch (const fsdp::CommunicationError& error) { return restart_from_checkpoint(); }
//
// Before there is a group, ranks that cannot meet (MASTER_ADDR unreachable, a rank that does not arrive) get a
// c10::DistStoreError, and those that cannot connect a c10::DistNetworkError. c10::DistError is the base of all three.
class CommunicationError : public c10::DistBackendError {
 public:
  using c10::DistBackendError::DistBackendError;
};

// Another rank of the group has ended, has lost its connection, or has failed. In the last case, the message contains
// the error of that rank. Thrown when this rank needs that rank: a collective which that rank has done its part of
// still succeeds.
//
//   catch (const fsdp::RankLost& error) { … }  // the launcher starts the ranks again
class RankLost : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

// Another rank has not done its part of a collective within the timeout of the communicator. It may be stuck, or may
// skip the collective. Thrown by the rank that waited; other ranks then get a RankLost with its message.
//
//   catch (const fsdp::RankLate& error) { std::cerr << sharded->diagnostics().collective_log(); throw; }
class RankLate : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

// Ranks have issued different collectives, or the same one with different sizes or dtypes. No data were mixed. It is an
// error of the program: one rank takes a way that others do not. Thrown by a rank that has compared; others may get a
// RankLost with its message.
//
//   catch (const fsdp::RanksDiffer& error) { … }  // the message names two ranks and two collectives
class RanksDiffer : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

// This rank's wait for another rank was ended by interrupt_waits() (fsdp/interruption.h), as a program may do at
// Ctrl-C. The other ranks get a RankLost with its message. Also thrown while ranks meet, before there is a group.
//
//   catch (const fsdp::WaitInterrupted&) { return 130; }  // the user has asked for the end
class WaitInterrupted : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

// A file or folder cannot be opened, read or written, or its contents are not what its format says: a damaged
// checkpoint, a config.json with a wrong value, a full disk. The message names the file. Thrown on the rank that uses
// the file; collective functions throw StepFailed on all ranks instead, with this message. what() has no backtrace.
//
//   catch (const fsdp::FileError& error) { std::cerr << error.what() << std::endl; }
class FileError : public c10::Error {
 public:
  using c10::Error::Error;
};

// An error that all ranks have, and of which each rank knows that all have it. The ranks are in step: they may handle
// it and continue together, and one rank may report it for all. Thrown by collective functions that save and load.
//
//   catch (const fsdp::ErrorOfAllRanks& error) { if (rank == 0) std::cerr << error.what_without_backtrace(); }
class ErrorOfAllRanks : public c10::Error {
 public:
  using c10::Error::Error;
};

// A step of a collective function failed on some ranks: "save of /checkpoints/3 failed: rank 1: …". The message has the
// errors of these ranks; all ranks throw it. After a failed save, the existing checkpoints are as before.
//
//   catch (const fsdp::StepFailed& error) { … }  // train on; the next save may succeed
class StepFailed : public ErrorOfAllRanks {
 public:
  using ErrorOfAllRanks::ErrorOfAllRanks;
};

}  // namespace fsdp
