// The functions of the NCCL library, which is opened at run time: building needs only its header.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

namespace fsdp::comm {

struct NcclLibrary {
  std::string path;  // "libnccl.so.2", or the requested path
  int version = 0;   // in NCCL's encoding: 22803 is 2.28.3

  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclRedOpCreatePreMulSum) red_op_create_pre_mul_sum = nullptr;
  decltype(&::ncclRedOpDestroy) red_op_destroy = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;
};

// Opens the library at `path`; if `path` is empty, searches where communicator.h says. The library stays open until the
// process ends. Throws, saying how to get one, if there is no library, if it lacks a function, or if its version does
// not fit.
std::shared_ptr<const NcclLibrary> load_nccl_library(const std::string& path = {});

// Formats a version, such as "2.28.3".
std::string nccl_version_text(int version);

}  // namespace fsdp::comm
