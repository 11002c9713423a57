# find_package(fsdp): the library, its public headers and the module that finds LibTorch. Also the program, which
# finds the library beside it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/fsdp")

install(TARGETS fsdp EXPORT fsdpTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fsdp" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT fsdpTargets NAMESPACE fsdp:: DESTINATION ${package_dir})
if(TARGET fsdp_program)
  set_target_properties(fsdp_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS fsdp_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/fsdpConfig.cmake.in" "${PROJECT_BINARY_DIR}/fsdpConfig.cmake"
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" "${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake"
        DESTINATION ${package_dir})
