# kiln_layer(name folder): the C files of one folder (not of those below it) as the object library kiln_<name>,
# remembered in KILN_OBJECTS. A folder that is still empty is no error.
set(KILN_OBJECTS "")
function(kiln_layer name folder)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.c)
    if(NOT sources)
        return()
    endif()
    add_library(kiln_${name} OBJECT ${sources})
    target_link_libraries(kiln_${name} PRIVATE kiln_flags)
    target_compile_definitions(kiln_${name} PRIVATE
        KILN_VERSION_STRING="${PROJECT_VERSION}" KILN_BUILDING)
    if(name STREQUAL llvm)
        target_link_libraries(kiln_${name} PRIVATE kiln_llvm_headers)
    endif()
    list(APPEND KILN_OBJECTS $<TARGET_OBJECTS:kiln_${name}>)
    set(KILN_OBJECTS ${KILN_OBJECTS} PARENT_SCOPE)
endfunction()
