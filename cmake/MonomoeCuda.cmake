# The Hopper backend: built where nvcc 13 or later is found (MONOMOE_CUDA=AUTO), always (ON) or
# never (OFF). The targets are ours, whatever architecture list the environment exports.
set(MONOMOE_CUDA AUTO CACHE STRING "Build the Hopper backend: AUTO, ON or OFF")

set(monomoe_cuda OFF)
if(NOT MONOMOE_CUDA STREQUAL "OFF")
  find_program(MONOMOE_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
  if(MONOMOE_NVCC)
    execute_process(COMMAND ${MONOMOE_NVCC} --version OUTPUT_VARIABLE nvcc_text)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" nvcc_release "${nvcc_text}")
    if(CMAKE_MATCH_1 VERSION_GREATER_EQUAL 13.0)
      set(monomoe_cuda ON)
    endif()
  endif()
  if(NOT monomoe_cuda AND MONOMOE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MONOMOE_CUDA: nvcc 13.0 or later wanted, "
      "'${MONOMOE_NVCC}' ${CMAKE_MATCH_1} found; install the CUDA toolkit or set MONOMOE_CUDA=OFF")
  endif()
endif()
message(STATUS "Hopper backend: ${monomoe_cuda}")

if(monomoe_cuda)
  set(CMAKE_CUDA_COMPILER ${MONOMOE_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES 90a)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  set_target_properties(monomoe_objects PROPERTIES CUDA_ARCHITECTURES 90a)
  target_sources(monomoe_objects PRIVATE src/arch/sm90/kernel.cu src/arch/sm90/backend.cpp)
  target_compile_definitions(monomoe_objects PRIVATE MONOMOE_CUDA)
  # Profilers and sanitizers name lines; the code is the same.
  target_compile_options(monomoe_objects PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
  target_link_libraries(monomoe_objects PUBLIC CUDA::cudart_static)
endif()
