# Compile options that belong to single source files of FOLIO_SOURCES, and
# FOLIO_HOST_DEFINITIONS, which tells the code what of them was built.
include(CheckCCompilerFlag)

# Numbers are the same with every compiler and option only if a * b + c is
# never silently fused, in the ops and in the sampler's exp2.
set(arithmetic ${FOLIO_SOURCES})
list(FILTER arithmetic INCLUDE REGEX "/src/(ops|sample)/")
set_property(SOURCE ${arithmetic} APPEND PROPERTY COMPILE_OPTIONS
  -ffp-contract=off)

# Unoptimised ops would make the tests of a debug build wait for minutes.
set(ops ${FOLIO_SOURCES})
list(FILTER ops INCLUDE REGEX "/src/(ops|base|sample)/")
set_property(SOURCE ${ops} APPEND PROPERTY COMPILE_OPTIONS
  $<$<CONFIG:Debug>:-O2>)

# src/ops/host/*_<set>.c is compiled for that instruction set and chosen at
# run time; on other processors, or where the compiler does not know the
# flags, the file is left out and FOLIO_HAVE_<SET> is not defined.
set(FOLIO_HOST_DEFINITIONS "")
function(folio_host_set name)
  set(files ${FOLIO_SOURCES})
  list(FILTER files INCLUDE REGEX "/src/ops/host/[^/]*_${name}\\.c$")
  string(TOUPPER ${name} upper)
  set(usable FALSE)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$"
      AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    string(REPLACE ";" " " flags "${ARGN}")
    check_c_compiler_flag("${flags}" FOLIO_TAKES_${upper})
    set(usable ${FOLIO_TAKES_${upper}})
  endif()
  if(usable)
    set_property(SOURCE ${files} APPEND PROPERTY COMPILE_OPTIONS ${ARGN})
    set(FOLIO_HOST_DEFINITIONS ${FOLIO_HOST_DEFINITIONS} FOLIO_HAVE_${upper}
      PARENT_SCOPE)
  elseif(files)
    list(REMOVE_ITEM FOLIO_SOURCES ${files})
    set(FOLIO_SOURCES ${FOLIO_SOURCES} PARENT_SCOPE)
  endif()
endfunction()
folio_host_set(avx2 -mavx2 -mfma -mf16c)
folio_host_set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
folio_host_set(vnni -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
  -mfma -mf16c)
