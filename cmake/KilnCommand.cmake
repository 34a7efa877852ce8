# The command `kiln` (cache/cli): made of the archives of the layers that need no LLVM, so that only what it uses is linked.
# Man pages and completions are printed by it from its tables and installed beside it.
find_path(GCRYPT_INCLUDE gcrypt.h REQUIRED) # SHA-256 of packs; the library has no use for it
find_library(GCRYPT_LIBRARY gcrypt REQUIRED)
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cache/cli/*.c)
# Text as C arrays. LICENSE and NOTICE: `kiln info --licenses` prints them wherever the command was copied to.
function(kiln_hex out) # the files' bytes, each file ended by a newline
    set(all "")
    foreach(file ${ARGN})
        file(READ ${file} text HEX)
        string(APPEND all "${text}0a")
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    endforeach()
    set(${out} "${all}" PARENT_SCOPE)
endfunction()
function(kiln_array out name hex) # C text that defines it
    string(REGEX REPLACE "(..)" "'\\\\x\\1', " bytes "${hex}")
    set(${out} "extern const char ${name}[];\nconst char ${name}[] = {\n${bytes}0};\n" PARENT_SCOPE)
endfunction()
kiln_hex(hex ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE)
kiln_array(text licenses_text "${hex}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/command/licenses.c CONTENT "${text}" @ONLY)
# The page of `kiln report`: report/page.html with style and script put in, cut in two where the data come to stand.
set(report ${PROJECT_SOURCE_DIR}/cache/cli/report)
kiln_hex(page ${report}/page.html)
kiln_hex(style ${report}/report.css)
kiln_hex(script ${report}/core.js ${report}/timeline.js ${report}/kernels.js ${report}/programs.js ${report}/sections.js ${report}/check.js)
foreach(part style script)
    string(HEX "<!--${part}-->" mark)
    string(REPLACE "${mark}" "${${part}}" page "${page}")
endforeach()
string(HEX "<!--data-->" mark)
string(FIND "${page}" "${mark}" at)
string(LENGTH "${mark}" n)
string(SUBSTRING "${page}" 0 ${at} before)
math(EXPR at "${at} + ${n}")
string(SUBSTRING "${page}" ${at} -1 after)
kiln_array(before report_before "${before}")
kiln_array(after report_after "${after}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/command/report_page.c CONTENT "${before}${after}" @ONLY)
add_executable(kiln_command ${sources} ${PROJECT_BINARY_DIR}/command/licenses.c ${PROJECT_BINARY_DIR}/command/report_page.c)
target_include_directories(kiln_command SYSTEM PRIVATE ${JANSSON_INCLUDE} ${GCRYPT_INCLUDE})
target_compile_definitions(kiln_command PRIVATE KILN_VERSION_STRING="${PROJECT_VERSION}")
target_link_libraries(kiln_command PRIVATE
    kiln_flags $<LINK_GROUP:RESCAN,kiln_base_archive,kiln_ir_archive,kiln_guards_archive,kiln_jit_archive,kiln_cache_archive> ${JANSSON_LIBRARY} ${GCRYPT_LIBRARY})
target_link_options(kiln_command PRIVATE -Wl,--gc-sections)
set_target_properties(kiln_command PROPERTIES OUTPUT_NAME kiln)

set(KILN_MADE ${PROJECT_BINARY_DIR}/command)
set(KILN_MAN ${PROJECT_SOURCE_DIR}/cache/cli/man)
set(script ${PROJECT_SOURCE_DIR}/cmake/KilnCommandTexts.cmake)
set(texts ${KILN_MADE}/kiln.1 ${KILN_MADE}/kiln.3 ${KILN_MADE}/kiln-env.7 ${KILN_MADE}/kiln.bash ${KILN_MADE}/_kiln ${KILN_MADE}/kiln.fish)
if(KILN_SANITIZE MATCHES "thread") # nothing of it is run there
    return()
endif()
# With the program, not as a target beside it: whoever builds the command has what gets installed with it.
add_custom_command(TARGET kiln_command POST_BUILD BYPRODUCTS ${texts}
    COMMAND ${CMAKE_COMMAND} -DKILN=$<TARGET_FILE:kiln_command> -DMAN=${KILN_MAN} -DOUT=${KILN_MADE} -DVERSION=${PROJECT_VERSION} -P ${script}
    VERBATIM)
set_property(TARGET kiln_command APPEND PROPERTY LINK_DEPENDS ${script} ${KILN_MAN}/kiln.1.in ${KILN_MAN}/kiln.3.in ${KILN_MAN}/kiln-env.7.in)

set(command COMPONENT command)
if(TARGET kiln_mpi) # what is installed is there after the demo preset, too (tests/package/demo_install.sh)
    add_dependencies(kiln_command kiln_mpi)
endif()
install(TARGETS kiln_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ${command})
install(FILES ${KILN_MADE}/kiln.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 ${command})
install(FILES ${KILN_MADE}/kiln.3 DESTINATION ${CMAKE_INSTALL_MANDIR}/man3 COMPONENT development)
install(FILES ${KILN_MADE}/kiln-env.7 DESTINATION ${CMAKE_INSTALL_MANDIR}/man7 ${command})
install(FILES ${KILN_MADE}/kiln.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME kiln ${command})
install(FILES ${KILN_MADE}/_kiln DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions ${command})
install(FILES ${KILN_MADE}/kiln.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d ${command})
