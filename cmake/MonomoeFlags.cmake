# How everything here is compiled. Bits of results depend on -ffp-contract=off: no fused
# multiply-add unless the source says so. No -march: results are the same on every x86-64.
find_package(Threads REQUIRED)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O3")

if(MONOMOE_SANITIZE)
  # -g1: with full debug information g++ 12 needs minutes for one test file. Null pointers and
  # object sizes are AddressSanitizer's part; UBSan's checks of them cost minutes more.
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  add_compile_options(-fsanitize=${MONOMOE_SANITIZE} -fno-sanitize=null,object-size
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MONOMOE_SANITIZE})
endif()

# For our own sources only; never installed.
add_library(monomoe_flags INTERFACE)
target_compile_options(monomoe_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
  -ffp-contract=off -Wall -Wextra -Wconversion -Wsign-conversion
  $<$<BOOL:${MONOMOE_WERROR}>:-Werror>>)
# g++ 12 sees overlapping copies in `"text" + std::string` (GCC bug 105651)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  target_compile_options(monomoe_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
