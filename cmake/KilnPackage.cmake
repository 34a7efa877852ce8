# Packages, made by `cmake --workflow --preset package` (or cpack in any build folder): the Debian packages libkiln1, libkiln-dev and kiln, and
# the source archive. cmake/KilnDebian.cmake adds what only Debian wants.
# A package names who made it and answers for it: DEBFULLNAME and DEBEMAIL, as Debian's own tools have it. There is no default: without
# one the packages are refused (cmake/KilnDebian.cmake).
set(maintainer "")
if(DEFINED ENV{DEBFULLNAME} AND DEFINED ENV{DEBEMAIL})
    set(maintainer "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(KILN_MAINTAINER "${maintainer}" CACHE STRING "who makes the Debian packages: Name <address>")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT ${KILN_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "tracing JIT for array programs in C")
set(CPACK_STRIP_FILES ON)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_RESOURCE_FILE_README ${PROJECT_SOURCE_DIR}/README.md)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/KilnDebian.cmake)
set(CPACK_COMPONENTS_ALL library development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(soname libkiln${KILN_SOVERSION})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${soname})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "liblapack3 | liblapack.so.3") # kiln_solve and the like open it
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs "libkiln ${KILN_SOVERSION} ${soname} (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers ${PROJECT_BINARY_DIR}/debian/shlibs)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "Calls record what to compute. When a value is needed, the recorded graph is
optimised, fused into few loops, compiled for this CPU or an NVIDIA GPU, and
run. Compiled programs are kept in memory and on disk.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libkiln-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${soname} (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "The header, which is the manual, and what CMake and pkg-config need to find
the library.")
if(KILN_COMMAND)
    list(APPEND CPACK_COMPONENTS_ALL command)
    set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME kiln)
    set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION devel)
    set(CPACK_COMPONENT_COMMAND_DESCRIPTION "The command kiln shows what is in the cache of compiled programs, why something
was compiled again, and what the library knows of itself; it makes packs of
compiled programs, and takes them in.")
endif()

set(CPACK_SOURCE_GENERATOR TXZ)
set(CPACK_SOURCE_PACKAGE_FILE_NAME kiln-${PROJECT_VERSION})
set(CPACK_SOURCE_IGNORE_FILES "^${PROJECT_SOURCE_DIR}/(build|shared|\\\\.git|\\\\.cache|compile_commands\\\\.json)(/|$)")
include(CPack)
