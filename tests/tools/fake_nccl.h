// A library with NCCL's functions, for ranks that are threads of one process. It allows tests of the NCCL communicator
// without a GPU. Collectives read and write host memory. Without a stream (null), they block until all ranks have
// joined; with a stream, they are passed to `enqueue`. Tests find the functions below with dlsym.
#pragma once

#include <functional>

extern "C" {

// Runs `work` on `stream`, after all work that was enqueued there before.
using FakeNcclEnqueue = void (*)(void* stream, std::function<void()> work);
void fake_nccl_set_enqueue(FakeNcclEnqueue enqueue);

// The next call of `function` (such as "ncclAllGather") by this rank of any communicator returns `result` and does
// nothing.
void fake_nccl_fail_next(const char* function, int rank, int result);

// From now on, ncclCommGetAsyncError reports `result` for communicators of this rank.
void fake_nccl_set_async_error(int rank, int result);

// Sets how often non-blocking communicators answer "in progress" before a call is done.
void fake_nccl_set_in_progress(int polls);

// Sets the version that ncclGetVersion returns. 0: the version of the header.
void fake_nccl_set_version(int version);

// Return the number of communicators and of operators that exist.
int fake_nccl_live_communicators();
int fake_nccl_live_operators();

// Resets all faults and settings.
void fake_nccl_reset();
}
