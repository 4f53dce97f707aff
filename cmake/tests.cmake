# Programs that are not installed. Included by the main CMakeLists.txt.

# Tests link the machine code of the library, not its LTO form: optimising the whole library again for each of them takes minutes.
set(no_lto)
if(lto_flags)
	set(no_lto -fno-lto)
endif()

# add_program(<target> <folder> <source> <library>...): one program from one file, at build/<folder>/<name>.
function(add_program target folder source)
	get_filename_component(name ${source} NAME_WE)
	add_executable(${target} ${source})
	set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${folder})
	target_include_directories(${target} PRIVATE tests cli src plugins/cuda)
	target_link_libraries(${target} PRIVATE ${ARGN} ${command_library} headroom_analysis_static headroom_runtime_static headroom_static m)
endfunction()

# For scripts that run programs of a cross-compiled build: tests/cuda/cuda_run.py.
set(emulated)
if(CMAKE_CROSSCOMPILING_EMULATOR)
	string(REPLACE ";" " " emulated "${CMAKE_CROSSCOMPILING_EMULATOR}")
	set(emulated ";HEADROOM_EMULATOR=${emulated};HEADROOM_CC=${CMAKE_C_COMPILER}")
endif()

set(HEADROOM_TEST_TIMEOUT 600 CACHE STRING "Seconds after which a test counts as hung")

# Tests run from the root of the repository, so that they can name traces/gpt2.csv.gz.
function(add_headroom_test name labels)
	add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
	set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${HEADROOM_TEST_TIMEOUT}
		ENVIRONMENT "HEADROOM_COMMAND=$<TARGET_FILE:headroom_cli>;HEADROOM_CUDA=0;HEADROOM_CUDA_LIBRARIES=0;HEADROOM_FAKE_CUDA=${PROJECT_BINARY_DIR}/fake_cuda${emulated}")
endfunction()

# ---- tests/fake_cuda ----

# Stand-ins for the CUDA driver: one that is whole, and one that lacks a call, as an old driver does. Not sanitized, because a program
# that is not must be able to load them too. Tests never use a card that the machine may have, unless they are started by hand.
foreach(kind whole old)
	add_library(fake_cuda_${kind} SHARED tests/fake_cuda/fake_cuda.c tests/fake_cuda/fake_launch.c tests/fake_cuda/fake_module.c
		tests/fake_cuda/fake_program.c tests/fake_cuda/fake_sharing.c)
	set_target_properties(fake_cuda_${kind} PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1 C_VISIBILITY_PRESET hidden
		LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_cuda/${kind})
	target_include_directories(fake_cuda_${kind} PRIVATE tests src plugins/cuda)
	target_compile_options(fake_cuda_${kind} PRIVATE -fno-sanitize=all)
	target_link_options(fake_cuda_${kind} PRIVATE -fno-sanitize=all -Wl,-Bsymbolic) # its own calls are not the program's
	target_link_libraries(fake_cuda_${kind} PRIVATE Threads::Threads)
endforeach()
target_compile_definitions(fake_cuda_old PRIVATE FAKE_CUDA_OLD)

# Stand-ins for CUDA's libraries, on the driver's: a compiler of kernels for the host, and products of matrices.
foreach(kind nvrtc cublaslt)
	add_library(fake_${kind} SHARED tests/fake_cuda/fake_${kind}.c)
	set_target_properties(fake_${kind} PROPERTIES SUFFIX .so.13 C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_cuda/libraries)
	target_include_directories(fake_${kind} PRIVATE tests src plugins/cuda include)
	target_compile_options(fake_${kind} PRIVATE -fno-sanitize=all)
	target_link_options(fake_${kind} PRIVATE -fno-sanitize=all -Wl,-Bsymbolic)
	target_link_libraries(fake_${kind} PRIVATE fake_cuda_whole)
endforeach()
set_target_properties(fake_nvrtc PROPERTIES OUTPUT_NAME nvrtc)
set_target_properties(fake_cublaslt PROPERTIES OUTPUT_NAME cublasLt)
target_compile_definitions(fake_nvrtc PRIVATE FAKE_NVRTC_SHIM="${PROJECT_SOURCE_DIR}/tests/fake_cuda/host_program.h")

# ---- tests/cuda ----

# A program that uses CUDA and not Headroom, also linked to the driver, and a module that it loads. Not sanitized, as programs that others compile.
if(TARGET headroom)
	add_executable(cuda_program tests/cuda/program.c tests/cuda/obtain.c)
	add_executable(cuda_program_linked tests/cuda/program.c tests/cuda/obtain.c)
	add_executable(cuda_hostile tests/cuda/hostile.c)
	add_library(cuda_faults MODULE tests/cuda/faults.c tests/fault_os.c)
	target_link_libraries(cuda_faults PRIVATE headroom)
	set_target_properties(cuda_faults PROPERTIES PREFIX "" C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/cuda)
	add_library(cuda_program_module MODULE tests/cuda/obtain.c)
	set_target_properties(cuda_program_module PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/cuda)
	set_target_properties(cuda_hostile PROPERTIES ENABLE_EXPORTS ON) # for RTLD_DEEPBIND
	target_compile_definitions(cuda_program_linked PRIVATE LINKED)
	target_link_libraries(cuda_program_linked PRIVATE fake_cuda_whole)
	foreach(target cuda_program cuda_program_linked cuda_program_module cuda_hostile cuda_faults)
		set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/cuda)
		target_include_directories(${target} PRIVATE include src tests plugins/cuda)
		target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
	endforeach()
endif()

# ---- tests/unload ----

# A module that contains the library, to be loaded and unloaded. Sanitizer runtimes live in the executable.
if(TARGET headroom)
	add_library(unload_plugin MODULE EXCLUDE_FROM_ALL tests/unload/plugin.c)
	set_target_properties(unload_plugin PROPERTIES PREFIX "" OUTPUT_NAME plugin LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/unload)
	target_link_libraries(unload_plugin PRIVATE headroom_static m)
	target_link_options(unload_plugin PRIVATE ${no_lto})
endif()

# ---- tests/profile ----

# The example as a dynamically linked program, which loads libheadroom_analysis.so when it is needed.
if(TARGET headroom)
	add_executable(profile_shared examples/profile.c)
	set_target_properties(profile_shared PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/profile)
	target_link_libraries(profile_shared PRIVATE headroom::headroom)
	add_dependencies(profile_shared headroom_analysis)
endif()

# ---- tests/ ----

file(GLOB test_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} tests/*.c tests/*/*.c)
list(FILTER test_files EXCLUDE REGEX "^tests/(install|fake_cuda|cuda)/|^tests/(unload/plugin|without_threads).c$")
set(test_programs ${test_files})
list(FILTER test_programs INCLUDE REGEX "/(test_[^/]*|[^/]*_conformance)\\.c$")
set(test_support ${test_files})
if(test_programs)
	list(REMOVE_ITEM test_support ${test_programs})
endif()

set(support_library)
if(test_support)
	add_library(headroom_test_support STATIC EXCLUDE_FROM_ALL ${test_support})
	target_include_directories(headroom_test_support PRIVATE tests cli)
	target_include_directories(headroom_test_support PUBLIC src)
	target_link_libraries(headroom_test_support PUBLIC ${command_library} headroom_static)
	set(support_library headroom_test_support)
endif()

# Of the kinds that ThreadSanitizer runs, those programs that start no thread, neither by themselves nor on a device: it could find nothing in them, and they
# would take a third of its time. without_threads.c ends one that starts a thread after all.
set(without_threads lms_close_to_bound lms_layout lms_learned lms_mapped_times lms_optimizer_state lms_plan lms_plan_kept lms_plan_recompute lms_pure_record
	lms_recompute_figures lms_repeats lms_state oom_report_json oom_report_text profile_import runtime_ops_math unit_allocator_metadata unit_allocator_stitch
	unit_arena_check unit_pickle unit_pure_ops unit_stats_custom)

set(test_targets)
set(threads_targets)
set(conformance_targets)
set(core_targets fake_cuda_whole fake_cuda_old)
foreach(source ${test_programs})
	get_filename_component(name ${source} NAME_WE)
	get_filename_component(folder ${source} DIRECTORY)
	get_filename_component(kind ${folder} NAME)
	string(REGEX REPLACE "^test_|_conformance$" "" short ${name})
	set(target ${kind}_${short})
	add_program(${target} ${folder} ${source} ${support_library})
	target_link_options(${target} PRIVATE ${no_lto})
	list(APPEND test_targets ${target})

	# `threads` is what ThreadSanitizer runs.
	set(labels ${kind})
	if(target IN_LIST without_threads)
		target_sources(${target} PRIVATE tests/without_threads.c)
		target_link_options(${target} PRIVATE -Wl,--wrap=pthread_create)
	elseif(kind MATCHES "^(unit|conformance|device|oom|lms|runtime|profile)$" OR name MATCHES "thread")
		list(APPEND labels threads)
		list(APPEND threads_targets ${target})
	endif()
	if(kind STREQUAL "conformance")
		list(APPEND conformance_targets ${target})
	endif()
	if(kind MATCHES "^(unit|conformance|model|fault|exhaustive|misuse)$")
		list(APPEND core_targets ${target})
	endif()
	add_headroom_test(${kind}.${short} "${labels}" ${target})

	# On the card where the machine's GPU is to be tested; otherwise once more on the stand-in driver, with small pages, and a look at
	# what is left in it at the end.
	if(kind STREQUAL conformance AND HEADROOM_TEST_GPU)
		set_tests_properties(${kind}.${short} PROPERTIES ENVIRONMENT "HEADROOM_COMMAND=$<TARGET_FILE:headroom_cli>")
	elseif(kind STREQUAL conformance)
		add_headroom_test(${kind}.${short}.cuda "${labels}" ${target})
		set_tests_properties(${kind}.${short}.cuda PROPERTIES ENVIRONMENT
			"LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/fake_cuda/whole;HR_TEST_SUBJECT=cuda;HEADROOM_CUDA_LIBRARIES=0;HEADROOM_CUDA_PAGE=64KiB;FAKE_CUDA_GRANULARITY=65536;FAKE_CUDA_CHECK=1")
	endif()
endforeach()
# Once more on the stand-in card, with the stand-ins of CUDA's libraries.
add_headroom_test(runtime.golden.card runtime runtime_golden)
set_property(TEST runtime.golden.card APPEND PROPERTY ENVIRONMENT HR_TEST_CARD=0)
# Ops are tested without the engine: these put something of their own in the place of what kernels and gradients call.
foreach(target ${test_targets})
	if(target MATCHES "^runtime_ops?(_|$)" AND NOT target STREQUAL runtime_op_memory)
		target_link_options(${target} PRIVATE -Wl,--wrap=hr__team_run)
	endif()
endforeach()
target_link_options(runtime_op_gradients PRIVATE -Wl,--wrap=hr__call,--wrap=hr__call_one,--wrap=hr_value_release,--wrap=hr_last_status)
# It looks for its own functions in captured call stacks, by name.
set_target_properties(unit_stacks PROPERTIES ENABLE_EXPORTS ON)
list(APPEND test_targets fake_cuda_whole fake_cuda_old fake_nvrtc fake_cublaslt)
if(TARGET headroom)
	add_dependencies(unload_unload headroom unload_plugin)
	set(cuda_test_targets headroom_cuda cuda_program cuda_program_linked cuda_program_module cuda_hostile cuda_faults)
	list(APPEND test_targets profile_shared ${cuda_test_targets})
endif()
list(APPEND threads_targets fake_cuda_whole fake_cuda_old fake_nvrtc fake_cublaslt)
# It watches the free memory of devices, which others must not take meanwhile.
set_tests_properties(conformance.rounds PROPERTIES RUN_SERIAL ON)

# Scripts find the command in $HEADROOM_COMMAND.
file(GLOB test_scripts CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} tests/*/test_*.sh tests/*/test_*.py)
foreach(source ${test_scripts})
	get_filename_component(name ${source} NAME_WE)
	get_filename_component(folder ${source} DIRECTORY)
	get_filename_component(kind ${folder} NAME)
	string(REGEX REPLACE "^test_" "" short ${name})
	if(source MATCHES "\\.py$")
		set(interpreter python3)
	else()
		set(interpreter bash)
	endif()
	add_headroom_test(${kind}.${short} ${kind} ${interpreter} ${PROJECT_SOURCE_DIR}/${source})
endforeach()

# ---- examples/ ----

file(GLOB example_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} examples/*.c)
add_custom_target(examples)
foreach(source ${example_sources})
	get_filename_component(name ${source} NAME_WE)
	# Only what a user has: the public headers and the library.
	add_executable(example_${name} ${source})
	set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
	target_link_libraries(example_${name} PRIVATE headroom::headroom_analysis_static headroom::headroom_runtime_static headroom::headroom_static)
	target_link_options(example_${name} PRIVATE ${no_lto})
	add_headroom_test(example.${name} examples example_${name})
	add_dependencies(examples example_${name})
	list(APPEND test_targets example_${name})
endforeach()

# ---- fuzz/ ----

# fuzz/fuzz_<name>.c defines LLVMFuzzerTestOneInput; its corpus is fuzz/corpus/<name>/. Other files of fuzz/ are shared.
file(GLOB fuzz_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} fuzz/fuzz_*.c)
file(GLOB fuzz_support CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} fuzz/*.c)
if(fuzz_sources)
	list(REMOVE_ITEM fuzz_support ${fuzz_sources})
endif()
list(REMOVE_ITEM fuzz_support fuzz/replay_main.c)

set(fuzz_targets)
foreach(source ${fuzz_sources})
	get_filename_component(name ${source} NAME_WE)
	string(REGEX REPLACE "^fuzz_" "" short ${name})
	add_program(${name} fuzz ${source} ${support_library})
	target_sources(${name} PRIVATE ${fuzz_support})
	target_link_options(${name} PRIVATE ${no_lto})
	list(APPEND fuzz_targets ${name})
	if(HEADROOM_FUZZ)
		target_link_options(${name} PRIVATE -fsanitize=fuzzer)
	else()
		target_sources(${name} PRIVATE fuzz/replay_main.c)
		add_headroom_test(fuzz.${short} fuzz ${name} fuzz/corpus/${short})
	endif()
endforeach()
add_custom_target(fuzzers DEPENDS ${fuzz_targets})

# ---- the order of tests ----

# CTest starts those with a high COST first, so that none of them runs alone at the end. It measures the others itself, from their second run on. Seconds of
# one processor, from the build in which it takes most. Of torch.cuda_front those of its first run, in which it compiles the plug-in.
foreach(cost torch.cuda_front=97 torch.training=44 lms.lms_fault=37 tools.document_code=50 torch.plugin=25 torch.run=26 torch.recompute=23 torch.run_refused=22 card.card_compile=20
		torch.distributed=20 lms.recipe_model=20 lms.fixed=18 fault.fault_memory=17 torch.steady=16 torch.names=16 torch.compile=14 card.card_ops=13
		card.card_training=12 lms.lms_threads=12 exhaustive.arena_exhaustive=11 fleet.metrics=11 runtime.training_memory=10 oom.situations=9 torch.faults=8
		oom.oom_verdict=8 model.allocator_model=7 model.threads_model=6 lms.host=5
		torch.torchrun=25 cli.plan=32 conformance.tensor=29 cli.report=15 cli.outputs=11 profile.page_browser=10)
	string(REPLACE "=" ";" cost ${cost})
	list(GET cost 0 name)
	list(GET cost 1 seconds)
	if(TEST ${name})
		set_tests_properties(${name} PROPERTIES COST ${seconds})
	endif()
endforeach()

# ---- bench/ ----

# Benchmarks measure what is shipped, so they are linked as the command is.
find_optional(MIMALLOC HEADROOM_TESTS mimalloc.h libmimalloc.a mimalloc)

file(GLOB bench_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} bench/*.c)
list(REMOVE_ITEM bench_sources bench/count_malloc.c) # bench/torch_models.py builds it, for PyTorch's process
set(bench_targets)
foreach(source ${bench_sources})
	get_filename_component(name ${source} NAME_WE)
	add_program(bench_${name} bench ${source})
	target_compile_options(bench_${name} PRIVATE ${lto_flags})
	target_link_options(bench_${name} PRIVATE ${lto_flags})
	if(TARGET optional_MIMALLOC)
		target_link_libraries(bench_${name} PRIVATE optional_MIMALLOC)
	endif()
	list(APPEND bench_targets bench_${name})
endforeach()
add_custom_target(benchmarks DEPENDS ${bench_targets})

add_custom_target(threads_tests DEPENDS ${threads_targets})
add_custom_target(core_tests DEPENDS ${core_targets}) # what packaging/arm64.sh runs, with cuda_tests
add_custom_target(cuda_tests DEPENDS fake_cuda_whole fake_cuda_old headroom_cli)
if(TARGET headroom)
	add_dependencies(cuda_tests ${cuda_test_targets} profile_shared)
endif()
add_custom_target(conformance_tests DEPENDS ${conformance_targets} headroom_cli)
add_custom_target(tests DEPENDS ${test_targets} headroom_cli)
if(NOT HEADROOM_FUZZ)
	add_dependencies(tests fuzzers)
endif()
