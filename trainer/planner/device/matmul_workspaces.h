// The workspaces of cuBLAS.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace fsdp::planner {

// LibTorch allocates a workspace for each pair of a handle of cuBLAS and a stream at its first product, and never frees
// it (cublas_handle_stream_to_workspace in ATen/cuda/CublasHandlePool.cpp). Handles belong to threads: the thread that
// runs forward and the one that runs backward have a workspace each. cublasLt shares them. One for a process.
// Thread-safe.
class MatmulWorkspaces {
 public:
  static MatmulWorkspaces& get();

  // Frees all workspaces. Those to come have `nbytes` bytes each; 0: none are made.
  void reset(int64_t nbytes);
  // Must be called before a product on the current stream of this thread.
  void prepare();

 private:
  std::mutex mutex_;
  int64_t nbytes_ = 0;
  std::map<std::pair<std::thread::id, int>, c10::DataPtr> workspaces_;  // by thread and stream
};

}  // namespace fsdp::planner
