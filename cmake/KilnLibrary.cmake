# libkiln.so, made of all layers, and what gets installed.
add_library(kiln SHARED ${KILN_OBJECTS})
if(KILN_LLVM_INSIDE) # in libkiln.so alone: in the layers' archives it would serve whole programs
    target_sources(kiln PRIVATE jit/llvm/inside/exit.c)
endif()
add_library(kiln::kiln ALIAS kiln)
target_include_directories(kiln PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/runtime/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(kiln PRIVATE $<BUILD_INTERFACE:kiln_flags> $<BUILD_INTERFACE:kiln_llvm_hidden> $<BUILD_INTERFACE:${KILN_ZSTD}>
    $<BUILD_INTERFACE:${KILN_FILE_LIBRARIES}>)
# no system: gcc tells of a status that is ignored only where its macro is from no system header
set_target_properties(kiln PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${KILN_SOVERSION} LINKER_LANGUAGE CXX EXPORT_NO_SYSTEM ON)
set(KILN_EXPORTS ${PROJECT_SOURCE_DIR}/cmake/kiln.map)
# nodelete: the pool's threads and the clean-up of ending threads may run after a dlclose.
target_link_options(kiln PRIVATE -Wl,--gc-sections -Wl,-z,nodelete -Wl,--version-script=${KILN_EXPORTS})
# LLVM brings a hundred thousand relocations, which each process pays for at its start: packed they are a hundredth in size.
include(CheckLinkerFlag)
check_linker_flag(C -Wl,-z,pack-relative-relocs KILN_PACKS_RELOCATIONS)
if(KILN_PACKS_RELOCATIONS)
    target_link_options(kiln PRIVATE -Wl,-z,pack-relative-relocs)
endif()
set_property(TARGET kiln APPEND PROPERTY LINK_DEPENDS ${KILN_EXPORTS})
if(NOT KILN_SANITIZE)
    target_link_options(kiln PRIVATE -Wl,--no-undefined)
endif()

# Installing: the library, its one header, a CMake package, a pkg-config file, and the licences of all that is inside. The components are
# the Debian packages of KilnPackage.cmake.
include(CMakePackageConfigHelpers)
set(development COMPONENT development)
install(TARGETS kiln EXPORT kiln LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(FILES runtime/include/kiln.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${development})
install(EXPORT kiln NAMESPACE kiln:: FILE kiln-targets.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kiln ${development})
configure_package_config_file(cmake/kiln-config.cmake.in kiln-config.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kiln)
write_basic_package_version_file(kiln-config-version.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH KILN_PC_TO_PREFIX /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
configure_file(cmake/kiln.pc.in kiln.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kiln-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/kiln-config-version.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kiln ${development})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kiln.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig ${development})
install(FILES LICENSE NOTICE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/kiln COMPONENT licenses)
