# Installs headers, both libraries, programs, and the two descriptions of the
# package (CMake, pkg-config). Nothing installed holds an absolute path of the
# prefix, so the tree may be moved as a whole.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/folio)
install(DIRECTORY include/folio DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
# Two sets: whoever links the shared library needs none of the static one's
# dependencies installed.
foreach(kind static shared)
  install(TARGETS folio_${kind} EXPORT folio-${kind}-targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT folio-${kind}-targets NAMESPACE folio::
    DESTINATION ${package})
endforeach()
configure_package_config_file(cmake/folio-config.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/folio-config.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(
  ${CMAKE_CURRENT_BINARY_DIR}/folio-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/folio-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/folio-config-version.cmake
  DESTINATION ${package})

# From <libdir>/pkgconfig back to the prefix, as pkg-config will walk it.
file(RELATIVE_PATH FOLIO_PC_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" FOLIO_PC_PREFIX "${FOLIO_PC_PREFIX}")
get_filename_component(opencl_dir "${OpenCL_LIBRARY}" DIRECTORY)
set(opencl -lOpenCL)
if(NOT opencl_dir IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
  set(opencl -L${opencl_dir} -lOpenCL)
endif()
list(JOIN CMAKE_THREAD_LIBS_INIT " " threads)
# Plain flags, not Requires.private: pkg-config would demand those packages
# even from programs that link the shared library.
list(JOIN FOLIO_PCRE2_LDFLAGS " " private)
foreach(part "${FOLIO_XXHASH_LDFLAGS}" "${FOLIO_CLBLAST_LDFLAGS}" "${opencl}"
    "${threads}" -lm)
  list(JOIN part " " part)
  string(APPEND private " ${part}")
endforeach()
string(REGEX REPLACE " +" " " FOLIO_PC_LIBS_PRIVATE "${private}")
configure_file(cmake/folio.pc.in ${CMAKE_CURRENT_BINARY_DIR}/folio.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/folio.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
