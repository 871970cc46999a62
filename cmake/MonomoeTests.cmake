# One executable and one ctest label a folder of tests/: tests/plan/*_test.cpp -> monomoe_plan_tests.
# Other .cpp files of that folder are its helpers; tests/support/*.cpp is linked to all of them.
include(CTest)
include(GoogleTest)
include(MonomoeGTest)

file(GLOB_RECURSE support_sources CONFIGURE_DEPENDS tests/support/*.cpp)
file(GLOB_RECURSE all_tests CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/tests tests/*_test.cpp)
if(MONOMOE_TESTS_LEFT_OUT)
  list(FILTER all_tests EXCLUDE REGEX "${MONOMOE_TESTS_LEFT_OUT}")
endif()
set(folders ${all_tests})
list(FILTER folders INCLUDE REGEX "/")
list(TRANSFORM folders REPLACE "/.*" "")
list(REMOVE_DUPLICATES folders)
if(MONOMOE_TEST_FOLDERS)
  list(FILTER folders INCLUDE REGEX "^(${MONOMOE_TEST_FOLDERS})$")
endif()

# The Hopper backend and its kernels, compiled as C++ for an emulated machine. (Not for sanitizers:
# they do not follow fibers.)
if("emulator" IN_LIST folders AND NOT MONOMOE_SANITIZE)
  file(GLOB sources CONFIGURE_DEPENDS tests/emulator/*.cpp)
  add_executable(monomoe_emulator_tests ${sources}
    src/runtime/sm90_backend.cpp src/arch/sm90/backend.cpp
    $<FILTER:$<TARGET_OBJECTS:monomoe_objects>,EXCLUDE,sm90_backend|arch/sm90>)
  set_target_properties(monomoe_emulator_tests PROPERTIES EXPORT_COMPILE_COMMANDS OFF)
  target_include_directories(monomoe_emulator_tests PRIVATE
    ${PROJECT_SOURCE_DIR}/tests/emulator/include ${PROJECT_SOURCE_DIR}/tests
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_compile_definitions(monomoe_emulator_tests PRIVATE MONOMOE_CUDA)
  # Device code is nvcc's to judge.
  set_source_files_properties(tests/emulator/kernels.cpp PROPERTIES COMPILE_OPTIONS
    "-Wno-unknown-pragmas;-Wno-conversion;-Wno-sign-conversion;-Wno-unused-parameter;-Wno-attributes")
  target_link_libraries(monomoe_emulator_tests
    PRIVATE monomoe_flags GTest::gtest_main Threads::Threads)
  gtest_discover_tests(monomoe_emulator_tests NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60 PROPERTIES LABELS emulator TIMEOUT ${MONOMOE_TEST_TIMEOUT})
endif()
list(REMOVE_ITEM folders emulator)

if(support_sources)
  add_library(monomoe_test_support OBJECT ${support_sources})
  target_include_directories(monomoe_test_support PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(monomoe_test_support PRIVATE monomoe_flags GTest::gtest_main)
endif()

foreach(folder IN LISTS folders)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS tests/${folder}/*.cpp)
  if(MONOMOE_TESTS_LEFT_OUT)
    list(FILTER sources EXCLUDE REGEX "${MONOMOE_TESTS_LEFT_OUT}")
  endif()
  set(name monomoe_${folder}_tests)
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE monomoe_flags monomoe GTest::gtest_main)
  if(support_sources)
    target_link_libraries(${name} PRIVATE monomoe_test_support)
  endif()
  # Found when ctest starts, not when linked: TSan may need `setarch -R` around every run.
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${folder} TIMEOUT ${MONOMOE_TEST_TIMEOUT})
endforeach()

# Each public header compiles alone, and may be included by several files of one program.
if(NOT MONOMOE_SANITIZE)
  file(GLOB public_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
    include/monomoe/*.h)
  set(generated ${PROJECT_BINARY_DIR}/headers_alone)
  file(CONFIGURE OUTPUT ${generated}/main.cpp
    CONTENT "#include <monomoe/monomoe.h>\nint main() {}\n")
  set(header_sources ${generated}/main.cpp)
  foreach(header IN LISTS public_headers)
    string(MAKE_C_IDENTIFIER ${header} stem)
    file(CONFIGURE OUTPUT ${generated}/${stem}.cpp
      CONTENT "#include <${header}>\n#include <${header}>\n")
    list(APPEND header_sources ${generated}/${stem}.cpp)
  endforeach()
  add_executable(monomoe_headers_alone ${header_sources})
  target_link_libraries(monomoe_headers_alone PRIVATE monomoe_flags monomoe)
  add_test(NAME PublicHeaders.CompileAlone COMMAND monomoe_headers_alone)
  set_tests_properties(PublicHeaders.CompileAlone PROPERTIES LABELS headers TIMEOUT 20)
endif()
