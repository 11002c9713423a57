# Building blocks of the build: layers, the library, tests, and what makes builds fast.

get_filename_component(FSDP_ROOT "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)

# ccache and mold where they are installed. Paths in texts of the code (__FILE__, also in LibTorch's headers) are relative to
# the project's folder: a clone in another folder then finds its objects in the cache.
macro(fsdp_use_fast_tools)
  find_program(CCACHE_PROGRAM ccache)
  if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
  endif()
  find_program(MOLD_PROGRAM mold)
  if(MOLD_PROGRAM)
    add_link_options(-fuse-ld=mold)
  endif()
  add_compile_options("-fmacro-prefix-map=${FSDP_ROOT}/=")
endmacro()

macro(fsdp_use_sanitizers names)
  if(NOT "${names}" STREQUAL "")
    add_compile_options(-fsanitize=${names} -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${names})
  endif()
endmacro()

# Two precompiled headers, one for the library and one for tests, each compiled once.
function(fsdp_add_precompiled_headers)
  add_library(fsdp_pch OBJECT "${CMAKE_CURRENT_SOURCE_DIR}/cmake/pch.cpp")
  target_link_libraries(fsdp_pch PUBLIC LibTorch::LibTorch nlohmann_json::nlohmann_json)
  target_precompile_headers(fsdp_pch PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/cmake/pch.h")
  fsdp_set_options(fsdp_pch)
endfunction()

# Examples, benchmarks and tools include all of LibTorch's C++ interface: one precompiled header serves them all, with the
# code generation of a program.
function(fsdp_add_torch_pch)
  add_library(fsdp_torch_pch OBJECT "${CMAKE_CURRENT_SOURCE_DIR}/cmake/pch.cpp")
  target_link_libraries(fsdp_torch_pch PRIVATE LibTorch::LibTorch)
  target_precompile_headers(fsdp_torch_pch PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/cmake/torch_pch.h")
  set_target_properties(fsdp_torch_pch PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(fsdp_torch_pch PRIVATE -fPIE)
  fsdp_set_options(fsdp_torch_pch)
endfunction()

# fsdp_set_program_options(PROGRAM...)
function(fsdp_set_program_options)
  foreach(program ${ARGN})
    target_precompile_headers(${program} REUSE_FROM fsdp_torch_pch)
    fsdp_set_options(${program})
  endforeach()
endfunction()

function(fsdp_set_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unknown-pragmas -Winvalid-pch -fpch-preprocess)
  # Clang checks which mutex guards what: base/mutex.h.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Werror=thread-safety>)
endfunction()

# fsdp_add_layer(NAME [WITHOUT_LIBTORCH] [DEPENDS layer...] [EXCEPT file...]): the files *.cpp below src/NAME as the object
# library fsdp_NAME, and those named *_test.cpp as the sources of the test program NAME_test (built in tests/). Files in
# folders named testing are helpers of tests, and part of the library that tests share (tests/support). A layer
# sees its own headers and those of the layers that it depends on through links in layers/ of the build folder: an
# include of any other layer, or of LibTorch in a layer without it, does not compile.
function(fsdp_add_layer name)
  cmake_parse_arguments(arg "WITHOUT_LIBTORCH" "" "DEPENDS;EXCEPT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/*.cpp")
  set(test_sources ${sources})
  set(helper_sources ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$|/testing/")
  list(FILTER helper_sources INCLUDE REGEX "/testing/")
  set_property(GLOBAL APPEND PROPERTY FSDP_TEST_HELPERS ${helper_sources})
  foreach(file ${arg_EXCEPT})
    list(REMOVE_ITEM sources "${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/${file}")
  endforeach()
  list(FILTER test_sources INCLUDE REGEX "_test\\.cpp$")
  set(headers "${CMAKE_BINARY_DIR}/layers/${name}")
  file(MAKE_DIRECTORY "${headers}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}/src/${name}" "${headers}/${name}" SYMBOLIC)
  add_library(fsdp_${name} OBJECT ${sources})
  target_include_directories(fsdp_${name} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/include" "${headers}")
  target_link_libraries(fsdp_${name} PUBLIC nlohmann_json::nlohmann_json Threads::Threads)
  foreach(dependency ${arg_DEPENDS})
    target_link_libraries(fsdp_${name} PRIVATE fsdp_${dependency})
  endforeach()
  if(arg_WITHOUT_LIBTORCH)
    target_compile_features(fsdp_${name} PUBLIC cxx_std_20)
  else()
    target_link_libraries(fsdp_${name} PUBLIC LibTorch::LibTorch)
    target_precompile_headers(fsdp_${name} REUSE_FROM fsdp_pch)
  endif()
  fsdp_set_options(fsdp_${name})
  set_property(GLOBAL APPEND PROPERTY FSDP_LAYERS ${name})
  if(test_sources)
    set_property(GLOBAL PROPERTY FSDP_TESTS_${name} "${test_sources}")
    set_property(GLOBAL APPEND PROPERTY FSDP_TESTED_LAYERS ${name})
  endif()
endfunction()

# The one library: all layers together, shared, because the dispatcher takes one fallback for a key in a process.
function(fsdp_add_library)
  get_property(layers GLOBAL PROPERTY FSDP_LAYERS)
  set(objects "")
  foreach(layer ${layers})
    list(APPEND objects $<TARGET_OBJECTS:fsdp_${layer}>)
  endforeach()
  add_library(fsdp SHARED ${objects})
  add_library(fsdp::fsdp ALIAS fsdp)
  # One file, libfsdp.so.0, and a link to it: a Python wheel would hold each link as a copy.
  set_target_properties(fsdp PROPERTIES LINKER_LANGUAGE CXX SOVERSION 0)
  target_include_directories(fsdp PUBLIC
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_link_libraries(fsdp PUBLIC LibTorch::LibTorch PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
endfunction()
