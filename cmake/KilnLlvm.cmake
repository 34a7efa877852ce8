# LLVM 19 as two interface targets: kiln_llvm_hidden (what libkiln.so links) and kiln_llvm_shared (libLLVM, for unit
# tests, whose many executables would each take a static LLVM).
set(CMAKE_DISABLE_FIND_PACKAGE_CURL ON) # asked for by the LLVM package, used by nothing here
find_package(LLVM 19.1 REQUIRED CONFIG HINTS /usr/lib/llvm-19)
message(STATUS "LLVM ${LLVM_PACKAGE_VERSION} in ${LLVM_INSTALL_PREFIX}")

add_library(kiln_llvm_headers INTERFACE)
target_include_directories(kiln_llvm_headers SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS})

add_library(kiln_llvm_shared INTERFACE)
add_library(kiln_llvm_hidden INTERFACE)
if(TARGET LLVM)
    target_link_libraries(kiln_llvm_shared INTERFACE LLVM)
endif()
if(KILN_LLVM_SHARED AND TARGET LLVM)
    target_link_libraries(kiln_llvm_hidden INTERFACE LLVM)
    set(KILN_LLVM_INSIDE OFF)
else()
    set(KILN_LLVM_INSIDE ON)
    llvm_map_components_to_libnames(KILN_LLVM_LIBS core passes native NVPTX)
    target_link_libraries(kiln_llvm_hidden INTERFACE ${KILN_LLVM_LIBS})
    target_link_options(kiln_llvm_hidden INTERFACE -Wl,--exclude-libs,ALL)
endif()
if(NOT TARGET LLVM)
    target_link_libraries(kiln_llvm_shared INTERFACE kiln_llvm_hidden)
endif()
