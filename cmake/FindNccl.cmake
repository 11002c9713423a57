# Finds the headers of NCCL (nccl.h) and those of CUDA that it includes. The library itself is opened at run time.
# Looked for: NCCL_INCLUDE_DIR and CUDA_INCLUDE_DIR (variables), what scripts/nccl_headers.sh has put into the Python
# environment, the CUDA toolkit, and the Python packages beside LibTorch's.
# Defines Nccl_FOUND (they compile, without a CUDA compiler) and Nccl_INCLUDE_DIRS.
set(_nccl_environment "$ENV{VENV}")
if(NOT _nccl_environment)
  set(_nccl_environment "${PROJECT_SOURCE_DIR}/.venv")
endif()
# Looked for anew by each configuration (NO_CACHE): the Python environment may have got others since, and those that lie
# beside LibTorch do not compile by themselves.
find_path(NCCL_INCLUDE_DIR nccl.h NO_CACHE
  HINTS "${_nccl_environment}/nccl-headers" "$ENV{NCCL_HOME}/include" "$ENV{CUDA_HOME}/include" /usr/local/cuda/include
        "${TORCH_DIR}/../nvidia/nccl/include")
find_path(CUDA_INCLUDE_DIR cuda_runtime.h NO_CACHE
  HINTS "${NCCL_INCLUDE_DIR}" "$ENV{CUDA_HOME}/include" /usr/local/cuda/include "${TORCH_DIR}/../nvidia/cu13/include"
        "${TORCH_DIR}/../nvidia/cuda_runtime/include")
set(Nccl_INCLUDE_DIRS "")
if(NCCL_INCLUDE_DIR AND CUDA_INCLUDE_DIR)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_INCLUDES "${NCCL_INCLUDE_DIR}" "${CUDA_INCLUDE_DIR}")
  unset(Nccl_HEADERS_COMPILE CACHE)
  check_cxx_source_compiles("
    #include <nccl.h>
    int main() { ncclConfig_t config = NCCL_CONFIG_INITIALIZER; return config.blocking == 0; }" Nccl_HEADERS_COMPILE)
  unset(CMAKE_REQUIRED_INCLUDES)
  set(Nccl_INCLUDE_DIRS "${NCCL_INCLUDE_DIR}" "${CUDA_INCLUDE_DIR}")
  list(REMOVE_DUPLICATES Nccl_INCLUDE_DIRS)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Nccl
  REQUIRED_VARS NCCL_INCLUDE_DIR CUDA_INCLUDE_DIR Nccl_HEADERS_COMPILE
  REASON_FAILURE_MESSAGE "get the headers with scripts/nccl_headers.sh. Without them make_nccl_communicator only says so")
