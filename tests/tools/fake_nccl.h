// A library with NCCL's functions for ranks that are threads of one process: what the communicator over NCCL does can
// be tested without a GPU. Collectives read and write host memory. Without a stream (null) they block until all ranks
// have come; with one they are handed to `enqueue`. Tests find these functions with dlsym.
#pragma once

#include <functional>

extern "C" {

// Puts `work` behind what is on `stream`.
using FakeNcclEnqueue = void (*)(void* stream, std::function<void()> work);
void fake_nccl_set_enqueue(FakeNcclEnqueue enqueue);

// The next call of `function` ("ncclAllGather") by a rank of this number returns `result` and does nothing.
void fake_nccl_fail_next(const char* function, int rank, int result);

// From now on ncclCommGetAsyncError of that rank's communicators reports `result`.
void fake_nccl_set_async_error(int rank, int result);

// How often communicators that do not block answer "in progress" before a call is done.
void fake_nccl_set_in_progress(int polls);

// What ncclGetVersion answers; 0: the version of the header.
void fake_nccl_set_version(int version);

// Communicators and operators that exist.
int fake_nccl_live_communicators();
int fake_nccl_live_operators();

// Forgets faults and settings.
void fake_nccl_reset();
}
