# Target gpu_bundle: build/.../bundle, the folder that bench/gpu runs in, for machines with an NVIDIA driver and nothing else. Stripped, with the
# libraries beside it that the C library does not bring; it can be copied anywhere.
#
# kiln_gpu_test(name program settings...): a test that runs on the device there: settings are NAME=VALUE for its environment, then arguments.
set(KILN_BUNDLE ${PROJECT_BINARY_DIR}/bundle)
set(gpu_tests "")
set(gpu_programs "")
function(kiln_gpu_test name program)
    if(TARGET ${program})
        list(JOIN ARGN " " settings)
        string(APPEND gpu_tests "${name} ${program} ${settings}\n")
        set(gpu_tests "${gpu_tests}" PARENT_SCOPE)
        set(gpu_programs ${gpu_programs} ${program} PARENT_SCOPE)
    endif()
endfunction()

# The longest first: bench/gpu runs several at a time, in this order.
#
# Random graphs; warm programs that meet changed facts; several threads; the matrix of operations against the interpreter.
kiln_gpu_test(fuzz fuzz --count 300 --seconds 90)
foreach(name facts results reuse places guards)
    kiln_gpu_test(mutate_${name} mutate_${name})
endforeach()
# What users see (tests/gpu/api.c), but for what only the software driver can show (tests/gpu/software_only.def). Each test is a process with
# a context of its own, so all of them in one line would take minutes; --part divides whatever tests there are.
set(parts 8)
foreach(part RANGE 1 ${parts})
    kiln_gpu_test(api_${part} gpu_api --part ${part}/${parts})
endforeach()
foreach(name chain network reduce views binary meaning special index unary mixed)
    kiln_gpu_test(diff_${name} diff_${name})
endforeach()
foreach(name eval uploads)
    kiln_gpu_test(threads_${name} gpu_threads_${name})
endforeach()
# Left out: matrix_* and guard_texts, which look at the guards of compiled programs: they have the layers inside and need LLVM's library. What
# is about the host or its files alone, as tests/disk. tests/faults/cuda.c, whose calls to the driver fail.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/tests.list CONTENT "${gpu_tests}" @ONLY)
list(REMOVE_DUPLICATES gpu_programs)

set(part COMPONENT gpu EXCLUDE_FROM_ALL)
set(gpu_targets kiln device report ${gpu_programs})
# RPATH, not RUNPATH: it holds for the libraries that libkiln.so needs, too.
foreach(target device report ${gpu_programs})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
endforeach()
install(TARGETS device report RUNTIME_DEPENDENCY_SET gpu_libraries RUNTIME DESTINATION bin ${part})
if(gpu_programs)
    install(TARGETS ${gpu_programs} RUNTIME DESTINATION tests ${part})
endif()
install(TARGETS kiln RUNTIME_DEPENDENCY_SET gpu_libraries LIBRARY DESTINATION lib NAMELINK_SKIP ${part})
install(RUNTIME_DEPENDENCY_SET gpu_libraries PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|LLVM[^/]*|kiln)\\.so" DESTINATION lib ${part})
if(TARGET kiln_test_cuda)
    install(TARGETS kiln_test_cuda LIBRARY DESTINATION lib ${part})
    list(APPEND gpu_targets kiln_test_cuda)
endif()
install(PROGRAMS ${PROJECT_SOURCE_DIR}/bench/gpu ${PROJECT_SOURCE_DIR}/bench/yardsticks.py DESTINATION . ${part})
install(FILES ${PROJECT_BINARY_DIR}/tests.list DESTINATION . ${part})
# Files alone travel by any means: the libraries under the names that they are looked for, no links.
install(CODE [[
    file(GLOB libraries ${CMAKE_INSTALL_PREFIX}/lib/*)
    foreach(link ${libraries})
        if(IS_SYMLINK ${link})
            file(REAL_PATH ${link} file)
            file(RENAME ${file} ${link})
        endif()
    endforeach()
]] ${part})

add_custom_target(gpu_bundle
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${KILN_BUNDLE}
    COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --component gpu --prefix ${KILN_BUNDLE} --strip
    COMMENT "the bundle of bench/gpu: ${KILN_BUNDLE}" VERBATIM)
add_dependencies(gpu_bundle ${gpu_targets})
