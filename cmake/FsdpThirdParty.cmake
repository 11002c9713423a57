# Header-only libraries: those of the system where it has them, else the copies in third_party/ (third_party/versions.txt).
option(FSDP_SYSTEM_LIBRARIES "Use header-only libraries of the system where it has them" ON)
get_filename_component(fsdp_third_party "${CMAKE_CURRENT_LIST_DIR}/../third_party" ABSOLUTE)

# fsdp_find_package(NAME TARGET VERSION FOLDER): the system's package NAME, else a target TARGET with the headers in FOLDER
# of third_party/.
macro(fsdp_find_package name target version folder)
  if(FSDP_SYSTEM_LIBRARIES)
    find_package(${name} ${version} QUIET)
  endif()
  if(NOT TARGET ${target})
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} SYSTEM INTERFACE "${fsdp_third_party}/${folder}")
  endif()
endmacro()

# fsdp_find_folder(VARIABLE FILE FOLDER [PLACE...]): the folder that the user names in VARIABLE; else the system's that
# holds FILE, looked for among PLACEs where they are given; else FOLDER of third_party/. Looked for anew by each
# configuration, as the option may have changed.
macro(fsdp_find_folder variable file folder)
  if(FSDP_SYSTEM_LIBRARIES AND NOT "${ARGN}" STREQUAL "")
    find_path(${variable} "${file}" PATHS ${ARGN} NO_DEFAULT_PATH NO_CACHE)
  elseif(FSDP_SYSTEM_LIBRARIES)
    find_path(${variable} "${file}" NO_CACHE)
  endif()
  if(NOT ${variable})
    set(${variable} "${fsdp_third_party}/${folder}")
  endif()
endmacro()
