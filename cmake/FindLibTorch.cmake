# Finds a LibTorch (a LibTorch archive or the `torch` folder of a pip wheel) without asking for the CUDA toolkit:
# code that uses only the device-generic interfaces of c10 links against the CPU and CUDA builds alike.
# TORCH_DIR (variable or environment) names the folder that holds include/ and lib/.
# LibTorch_LINK_CUDA (default ON): links against the CUDA part of a LibTorch that has one. Without it, what is built runs
# with LibTorch's CPU and CUDA builds alike, but a program has CUDA only if it opens libtorch_cuda.so itself.
# Defines the target LibTorch::LibTorch, LibTorch_VERSION, and LibTorch_SERIES, its major and minor version ("2.13").
if(NOT TORCH_DIR)
  set(TORCH_DIR "$ENV{TORCH_DIR}")
endif()
if(NOT DEFINED LibTorch_LINK_CUDA)
  set(LibTorch_LINK_CUDA ON)
endif()
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS "${TORCH_DIR}/include" NO_CMAKE_FIND_ROOT_PATH)
foreach(lib torch torch_cpu c10)
  find_library(LibTorch_${lib}_LIBRARY ${lib} HINTS "${TORCH_DIR}/lib")
endforeach()
find_library(LibTorch_torch_cuda_LIBRARY torch_cuda HINTS "${TORCH_DIR}/lib")
find_library(LibTorch_c10_cuda_LIBRARY c10_cuda HINTS "${TORCH_DIR}/lib")
if(LibTorch_INCLUDE_DIR AND EXISTS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
  set(_libtorch_version_header "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
elseif(LibTorch_INCLUDE_DIR)
  set(_libtorch_version_header "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h")
endif()
if(_libtorch_version_header AND EXISTS "${_libtorch_version_header}")
  file(STRINGS "${_libtorch_version_header}" _libtorch_version_lines
       REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _libtorch_version_parts "${_libtorch_version_lines}")
  list(JOIN _libtorch_version_parts "." LibTorch_VERSION)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" LibTorch_SERIES "${LibTorch_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE
  "set TORCH_DIR to a LibTorch folder or to the torch folder of a Python environment \
(python -c 'print(__import__(\"torch\").__path__[0])')")
if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  target_link_libraries(LibTorch::LibTorch INTERFACE "${LibTorch_torch_cpu_LIBRARY}" "${LibTorch_c10_LIBRARY}")
  if(LibTorch_LINK_CUDA AND LibTorch_torch_cuda_LIBRARY AND LibTorch_c10_cuda_LIBRARY)
    # Nothing refers to a symbol of the CUDA build directly, so the linker must be told to keep it.
    target_link_libraries(LibTorch::LibTorch INTERFACE
      -Wl,--no-as-needed "${LibTorch_torch_cuda_LIBRARY}" "${LibTorch_c10_cuda_LIBRARY}" -Wl,--as-needed)
  endif()
  target_compile_features(LibTorch::LibTorch INTERFACE cxx_std_17)
endif()
