# find_package(fsdp): the library, its public headers and the module that finds LibTorch.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(TARGETS fsdp EXPORT fsdpTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET fsdp_program)
  install(TARGETS fsdp_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fsdp" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT fsdpTargets NAMESPACE fsdp:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/fsdpConfig.cmake.in" "${PROJECT_BINARY_DIR}/fsdpConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" "${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake"
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
