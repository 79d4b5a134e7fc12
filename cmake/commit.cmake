# Bakes the source revision into src/api/version.c: FOLIO_COMMIT given on the
# command line (packagers), else what git says when this folder is the root of
# a checkout, else "unknown". A new commit makes the build configure again.
set(FOLIO_COMMIT "" CACHE STRING "Source revision; empty: ask git")
set(commit "${FOLIO_COMMIT}")
if(NOT commit)
  set(commit unknown)
  find_package(Git QUIET)
  if(GIT_FOUND)
    execute_process(
      COMMAND ${GIT_EXECUTABLE} rev-parse --show-prefix
        --git-path logs/HEAD --short=12 HEAD
      WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
      OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE rc)
    # Line 1 is empty at the root of the checkout: inside somebody else's
    # repository the revision would be theirs.
    if(rc EQUAL 0 AND said MATCHES "^\n([^\n]+)\n([0-9a-f]+)\n")
      set(commit ${CMAKE_MATCH_2})
      get_filename_component(log "${CMAKE_MATCH_1}" ABSOLUTE
        BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
      if(EXISTS ${log})
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${log})
      endif()
    endif()
  endif()
endif()
set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/src/api/version.c APPEND
  PROPERTY COMPILE_DEFINITIONS FOLIO_COMMIT="${commit}")
