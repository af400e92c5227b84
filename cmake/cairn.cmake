# cairn_module(NAME DIR DEPENDS modules... LIBS libraries... SOURCES files...)  one library of ours
# cairn_program(NAME DEPENDS modules... LIBS libraries... SOURCES files...)     one binary
# cairn_test(NAME DEPENDS modules... LIBS libraries... SOURCES files...)        one GoogleTest binary, run by ctest (label unit)
include_guard(GLOBAL)

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Protobuf REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ROCKSDB REQUIRED IMPORTED_TARGET rocksdb)
pkg_check_modules(FUSE3 REQUIRED IMPORTED_TARGET fuse3)

add_library(cairn_options INTERFACE)
target_include_directories(cairn_options INTERFACE ${CMAKE_SOURCE_DIR})
target_include_directories(cairn_options SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/generated)  # no warnings from there
target_compile_options(cairn_options INTERFACE -Wall -Wextra -Wshadow -Werror -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Release")
  # GCC 12 at -O2 and above sees overlapping copies, out-of-range sorts and uninitialised members of std::expected that are not there
  # (GCC bug 105651 and its like). The dev preset keeps both warnings.
  target_compile_options(cairn_options INTERFACE -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow
                         -Wno-maybe-uninitialized)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(cairn_options INTERFACE -Wthread-safety -Wno-gnu-statement-expression)
endif()
target_link_libraries(cairn_options INTERFACE Threads::Threads fmt::fmt spdlog::spdlog)
if(CAIRN_SANITIZE STREQUAL "address")
  target_compile_options(cairn_options INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  target_link_options(cairn_options INTERFACE -fsanitize=address,undefined)
elseif(CAIRN_SANITIZE STREQUAL "thread")
  target_compile_options(cairn_options INTERFACE -fsanitize=thread)
  target_link_options(cairn_options INTERFACE -fsanitize=thread)
endif()

function(cairn_module name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LIBS;SOURCES" ${ARGN})
  list(TRANSFORM ARG_DEPENDS PREPEND cairn_)
  if(ARG_SOURCES)
    add_library(cairn_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(cairn_${name} PUBLIC cairn_options ${ARG_DEPENDS} ${ARG_LIBS})
  else()
    add_library(cairn_${name} INTERFACE)
    target_link_libraries(cairn_${name} INTERFACE cairn_options ${ARG_DEPENDS} ${ARG_LIBS})
  endif()
endfunction()

function(cairn_program name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LIBS;SOURCES" ${ARGN})
  list(TRANSFORM ARG_DEPENDS PREPEND cairn_)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE cairn_options ${ARG_DEPENDS} ${ARG_LIBS})
endfunction()

add_custom_target(unit_tests)  # all that cairn_test() declares

function(cairn_test name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LIBS;SOURCES" ${ARGN})
  find_package(GTest REQUIRED)
  list(TRANSFORM ARG_DEPENDS PREPEND cairn_)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE cairn_options ${ARG_DEPENDS} ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  add_dependencies(unit_tests ${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS unit)
endfunction()
