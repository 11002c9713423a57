# find_package(fsdp): the library, its public headers and the module that finds LibTorch. Also the program, which
# finds the library beside it. What is installed can be moved, as it names no folder of this machine;
# CMAKE_INSTALL_RPATH names folders in which installed files look for LibTorch besides.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/fsdp")

set_target_properties(fsdp PROPERTIES INSTALL_RPATH "$ORIGIN;${CMAKE_INSTALL_RPATH}")
install(TARGETS fsdp EXPORT fsdpTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fsdp" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT fsdpTargets NAMESPACE fsdp:: DESTINATION ${package_dir})
if(TARGET fsdp_program)
  set_target_properties(fsdp_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${CMAKE_INSTALL_RPATH}")
  install(TARGETS fsdp_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# LibTorch's C++ interface differs between minor versions, and the linker does not notice.
string(REPLACE "." ";" series_parts "${LibTorch_SERIES}")
list(GET series_parts 0 series_major)
list(GET series_parts 1 series_minor)
math(EXPR series_minor "${series_minor} + 1")
set(series_after "${series_major}.${series_minor}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/fsdpConfig.cmake.in" "${PROJECT_BINARY_DIR}/fsdpConfig.cmake"
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" "${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake"
        DESTINATION ${package_dir})
