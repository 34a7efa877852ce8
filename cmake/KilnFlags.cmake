# Compiler flags of everything in the tree, as the interface target kiln_flags.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND PROJECT_IS_TOP_LEVEL)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_program(KILN_CCACHE ccache)
if(KILN_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
    set(CMAKE_C_COMPILER_LAUNCHER ${KILN_CCACHE})
endif()

# -ffp-contract=off: the interpreter's arithmetic is the definition; the compiler must not fuse a*b+c on its own.
add_library(kiln_flags INTERFACE)
target_compile_definitions(kiln_flags INTERFACE _GNU_SOURCE)
target_compile_options(kiln_flags INTERFACE
    -Wall -Wextra -Wshadow -Wconversion $<$<BOOL:${KILN_WERROR}>:-Werror>
    -ffp-contract=off -fno-math-errno -ffunction-sections -fdata-sections)
target_include_directories(kiln_flags INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/runtime/include>)
find_package(Threads REQUIRED)
find_library(KILN_ZSTD zstd REQUIRED)
find_path(JANSSON_INCLUDE jansson.h REQUIRED)
find_library(JANSSON_LIBRARY jansson REQUIRED)
find_path(UTF8PROC_INCLUDE utf8proc.h) # of examples/embed.c alone, which is left out where it is missing
find_library(UTF8PROC_LIBRARY utf8proc)
if(UTF8PROC_INCLUDE AND UTF8PROC_LIBRARY)
    set(KILN_EMBED_INCLUDES ${JANSSON_INCLUDE} ${UTF8PROC_INCLUDE})
    set(KILN_EMBED_LIBRARIES ${JANSSON_LIBRARY} ${UTF8PROC_LIBRARY})
endif()
find_path(MINIZIP_INCLUDE minizip/unzip.h REQUIRED)
find_library(MINIZIP_LIBRARY NAMES libminizip.a minizip REQUIRED) # Debian's archive is position-independent: it goes inside
find_library(ZLIB_LIBRARY z REQUIRED)
set(KILN_FILE_INCLUDES ${JANSSON_INCLUDE} ${MINIZIP_INCLUDE}) # of runtime/files
set(KILN_FILE_LIBRARIES ${JANSSON_LIBRARY} ${MINIZIP_LIBRARY} ${ZLIB_LIBRARY})
target_link_libraries(kiln_flags INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})
target_link_options(kiln_flags INTERFACE -Wl,--build-id=sha1) # names the build in the keys of the cache on disk

if(KILN_SANITIZE)
    # Without -fno-sanitize-recover a report of UBSan would be text that no one reads.
    target_compile_options(kiln_flags INTERFACE
        -fsanitize=${KILN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(kiln_flags INTERFACE -fsanitize=${KILN_SANITIZE})
endif()
