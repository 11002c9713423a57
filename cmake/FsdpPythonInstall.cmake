# The component `python`: what is compiled for the Python package, in fsdp_cpp/lib/torchX.Y below the prefix, which is
# beside torch in site-packages. A folder holds the library of one minor version of torch, with a file that says so; a
# package may have several. Not part of an installation for C++.
set(python_folder "fsdp_cpp/lib/torch${LibTorch_SERIES}")

# The Python side reads it before it loads the library beside it.
set(nccl $<IF:$<BOOL:${Nccl_FOUND}>,true,false>)
file(GENERATE OUTPUT "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libfsdp_cpp.json" CONTENT
  "{\"version\": \"${PROJECT_VERSION}\", \"torch\": \"${LibTorch_VERSION}\", \"nccl\": ${nccl}}\n")
install(FILES "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libfsdp_cpp.json" DESTINATION ${python_folder}
        COMPONENT python EXCLUDE_FROM_ALL)

# The run path of CMake is the one of an installation for C++, so another one is written into what was installed. It must
# not be longer than the one of the build, which therefore has it as well.
set(python_rpath "$ORIGIN" "$ORIGIN/../../../torch/lib")
list(JOIN python_rpath ":" python_rpath_text)
set_target_properties(fsdp_python PROPERTIES INSTALL_RPATH "${python_rpath}")
foreach(target fsdp fsdp_python fsdp_program)
  if(NOT TARGET ${target})
    continue()
  endif()
  set_property(TARGET ${target} APPEND PROPERTY BUILD_RPATH "${python_rpath}")
  install(TARGETS ${target}
    LIBRARY DESTINATION ${python_folder} NAMELINK_SKIP COMPONENT python EXCLUDE_FROM_ALL
    RUNTIME DESTINATION ${python_folder} COMPONENT python EXCLUDE_FROM_ALL)
  get_target_property(type ${target} TYPE)
  set(file $<TARGET_SONAME_FILE_NAME:${target}>)
  if(type STREQUAL "EXECUTABLE")
    set(file $<TARGET_FILE_NAME:${target}>)
  endif()
  install(CODE "
    file(RPATH_SET FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${python_folder}/${file}\"
      NEW_RPATH [==[${python_rpath_text}]==])" COMPONENT python EXCLUDE_FROM_ALL)
endforeach()
