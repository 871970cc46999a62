# `find_package(monomoe)` gives monomoe::monomoe.
include(CMakePackageConfigHelpers)

set(monomoe_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/monomoe)
install(TARGETS monomoe EXPORT monomoeTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(DIRECTORY include/monomoe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp
  FILES_MATCHING PATTERN "*.h")
install(EXPORT monomoeTargets NAMESPACE monomoe:: DESTINATION ${monomoe_config_dir} COMPONENT cpp)
file(WRITE ${PROJECT_BINARY_DIR}/monomoeConfig.cmake
  "include(\${CMAKE_CURRENT_LIST_DIR}/monomoeTargets.cmake)\n")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/monomoeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/monomoeConfig.cmake ${PROJECT_BINARY_DIR}/monomoeConfigVersion.cmake
  DESTINATION ${monomoe_config_dir} COMPONENT cpp)
