# _monomoe.so: the binding and the library in one file, for every Python and torch version. It needs
# libtvm_ffi.so, which `import tvm_ffi` has loaded before; neither torch nor libpython.
find_package(Python 3.10 COMPONENTS Interpreter REQUIRED)

function(tvm_ffi_config flag result)
  execute_process(COMMAND ${Python_EXECUTABLE} -m tvm_ffi.config ${flag}
    OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "apache-tvm-ffi: wanted for MONOMOE_PYTHON, not found by "
      "${Python_EXECUTABLE}; install it with `pip install apache-tvm-ffi`")
  endif()
  set(${result} ${answer} PARENT_SCOPE)
endfunction()

tvm_ffi_config(--includedir tvm_ffi_include)
tvm_ffi_config(--dlpack-includedir dlpack_include)
tvm_ffi_config(--libfiles tvm_ffi_library)

add_library(_monomoe MODULE python/src/bind.cpp $<TARGET_OBJECTS:monomoe_objects>)
target_include_directories(_monomoe PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_include_directories(_monomoe SYSTEM PRIVATE ${tvm_ffi_include} ${dlpack_include})
target_link_libraries(_monomoe PRIVATE monomoe_flags Threads::Threads ${tvm_ffi_library})
if(monomoe_cuda)
  target_link_libraries(_monomoe PRIVATE CUDA::cudart_static)
endif()
set_target_properties(_monomoe PROPERTIES PREFIX "" SUFFIX ".so" SKIP_BUILD_RPATH ON)
install(TARGETS _monomoe LIBRARY DESTINATION monomoe COMPONENT python)
