# GTest::gtest_main: the installed GoogleTest, else its source from PyPI (MONOMOE_FETCH_GTEST).
find_package(GTest QUIET)
if(NOT TARGET GTest::gtest_main)
  if(NOT MONOMOE_FETCH_GTEST)
    message(FATAL_ERROR "GoogleTest: wanted for MONOMOE_TESTS, not found; install it "
      "(Debian: libgtest-dev), pass -DMONOMOE_FETCH_GTEST=ON or -DMONOMOE_TESTS=OFF")
  endif()
  find_package(Python 3.10 COMPONENTS Interpreter REQUIRED)
  set(gtest_dir ${PROJECT_SOURCE_DIR}/build/gtest)
  execute_process(
    COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/fetch_gtest.py ${gtest_dir}
    COMMAND_ERROR_IS_FATAL ANY)
  add_library(monomoe_gtest STATIC ${gtest_dir}/src/gtest-all.cc ${gtest_dir}/src/gtest_main.cc)
  target_include_directories(monomoe_gtest SYSTEM PUBLIC ${gtest_dir}/include)
  target_include_directories(monomoe_gtest PRIVATE ${gtest_dir})
  target_compile_options(monomoe_gtest PRIVATE -O1)
  target_link_libraries(monomoe_gtest PUBLIC Threads::Threads)
  add_library(GTest::gtest_main ALIAS monomoe_gtest)
endif()
