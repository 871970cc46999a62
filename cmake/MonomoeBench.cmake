# bench/NAME.cpp -> bench_NAME. Compiled in `make test`, run by `make bench`, never timed in CI.
file(GLOB bench_sources CONFIGURE_DEPENDS bench/*.cpp)
foreach(source IN LISTS bench_sources)
  get_filename_component(stem ${source} NAME_WE)
  add_executable(bench_${stem} ${source})
  target_include_directories(bench_${stem} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(bench_${stem} PRIVATE monomoe_flags monomoe)
endforeach()
