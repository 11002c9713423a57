# FSDP_WHEEL: builds what goes into a Python wheel, which runs on other machines. Set by pyproject.toml and
# scripts/make_wheel.py; comes before LibTorch is looked for.
option(FSDP_WHEEL "Build for a Python wheel" OFF)
if(NOT FSDP_WHEEL)
  return()
endif()

# The same headers wherever the wheel is built, and one library for LibTorch's CPU and CUDA builds.
set(FSDP_SYSTEM_LIBRARIES OFF)
set(LibTorch_LINK_CUDA OFF)
# Errors name a source file as it is called in the repository.
add_compile_options("-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=")

# A torch that is only compiled against may come without the libraries that it needs itself.
add_link_options(-Wl,--allow-shlib-undefined)

# A compiler takes up to 2.2 GB, and pip says nothing about how many may run.
cmake_host_system_information(RESULT memory_mib QUERY AVAILABLE_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT processors QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR compilers "${memory_mib} / 2560")
if(compilers GREATER processors)
  set(compilers ${processors})
elseif(compilers LESS 1)
  set(compilers 1)
endif()
set_property(GLOBAL PROPERTY JOB_POOLS fsdp_compilers=${compilers})
set(CMAKE_JOB_POOL_COMPILE fsdp_compilers)

# Looked for anew by each configuration, as a build folder may be used again after torch has changed.
foreach(part INCLUDE_DIR torch_LIBRARY torch_cpu_LIBRARY c10_LIBRARY torch_cuda_LIBRARY c10_cuda_LIBRARY)
  unset(LibTorch_${part} CACHE)
endforeach()
if(NOT TORCH_DIR)
  if(NOT Python_EXECUTABLE)
    find_program(Python_EXECUTABLE python3 REQUIRED)
  endif()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/python/build_support/target_torch.py"
    OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "There is no torch to build against; the error stands above.")
  endif()
endif()
