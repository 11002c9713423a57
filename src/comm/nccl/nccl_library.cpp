#include "comm/nccl/nccl_library.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>

#include "base/env.h"

namespace fsdp::comm {
namespace {

// The first version with all functions that are called here; LibTorch 2.11 comes with a much later one.
constexpr int kOldestVersion = NCCL_VERSION(2, 14, 3);
constexpr const char* kUsualName = "libnccl.so.2";
constexpr const char* kVariable = "FSDP_NCCL_LIBRARY";
constexpr const char* kHowToGetIt =
    "Install a CUDA build of LibTorch, which brings NCCL, or the Python package nvidia-nccl-cu13 and name its "
    "libnccl.so.2 in the environment variable FSDP_NCCL_LIBRARY";

void* open(const std::string& path) {
  if (path == kUsualName) {
    // The copy that LibTorch's CUDA library has loaded, from any folder.
    if (void* loaded = dlopen(kUsualName, RTLD_NOW | RTLD_NOLOAD)) return loaded;
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    TORCH_CHECK(false, "the NCCL library ", path, " cannot be opened (", reason, "). ", kHowToGetIt);
  }
  return handle;
}

template <typename Function>
void find(void* handle, const NcclLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  TORCH_CHECK(function != nullptr, "the NCCL library ", library.path, " has no function ", name, ". ", kHowToGetIt);
}

void find_functions(void* handle, NcclLibrary& library) {
  find(handle, library, "ncclGetVersion", library.get_version);
  find(handle, library, "ncclGetErrorString", library.get_error_string);
  find(handle, library, "ncclGetLastError", library.get_last_error);
  find(handle, library, "ncclGetUniqueId", library.get_unique_id);
  find(handle, library, "ncclCommInitRankConfig", library.comm_init_rank_config);
  find(handle, library, "ncclCommGetAsyncError", library.comm_get_async_error);
  find(handle, library, "ncclCommAbort", library.comm_abort);
  find(handle, library, "ncclRedOpCreatePreMulSum", library.red_op_create_pre_mul_sum);
  find(handle, library, "ncclRedOpDestroy", library.red_op_destroy);
  find(handle, library, "ncclAllGather", library.all_gather);
  find(handle, library, "ncclBroadcast", library.broadcast);
  find(handle, library, "ncclReduceScatter", library.reduce_scatter);
  find(handle, library, "ncclAllReduce", library.all_reduce);
  find(handle, library, "ncclGroupStart", library.group_start);
  find(handle, library, "ncclGroupEnd", library.group_end);
  find(handle, library, "ncclSend", library.send);
  find(handle, library, "ncclRecv", library.recv);
}

void check_version(NcclLibrary& library) {
  const ncclResult_t result = library.get_version(&library.version);
  TORCH_CHECK(result == ncclSuccess, "the NCCL library ", library.path,
              " does not report its version: ", library.get_error_string(result));
  TORCH_CHECK(library.version >= kOldestVersion && library.version / 10000 == NCCL_MAJOR, "the NCCL library ",
              library.path, " has version ", nccl_version_text(library.version), "; NCCL ", NCCL_MAJOR, ".x, version ",
              nccl_version_text(kOldestVersion), " or later, is required. ", kHowToGetIt);
}

}  // namespace

std::string nccl_version_text(int version) {
  const int unit = version < 10000 ? 1000 : 10000;  // up to 2.8 the minor version had one digit
  return c10::str(version / unit, ".", version % unit / 100, ".", version % 100);
}

std::shared_ptr<const NcclLibrary> load_nccl_library(const std::string& path) {
  auto library = std::make_shared<NcclLibrary>();
  library->path = !path.empty() ? path : base::env_string(kVariable).value_or(kUsualName);
  find_functions(open(library->path), *library);
  check_version(*library);
  return library;
}

}  // namespace fsdp::comm
