# Headroom. `make help` lists what there is. The work is done by CMake (CMakeLists.txt) and the scripts in tools/.

SHELL := /bin/bash
PREFIX ?= /usr/local
FUZZ_SECONDS ?=

.DEFAULT_GOAL := all
.PHONY: all help demo test bench gpu-test gpu-bench soak fuzz sanitize op-table examples site install uninstall dist package-test format clean

all: build/.setup-build ## the library and the command, at build/headroom
	@[ -x build/headroom ] || echo "compiling: takes a minute or two on two cores, and prints nothing until it is done"
	@. tools/lib.sh && configure build "" && build build product

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: all ## the whole story in a minute: train, run out of memory, read why, train anyway, look at the pictures
	@build/headroom demo --out build/demo

test: build/.setup-test ## everything that must hold (CI): tests, sanitizers, fuzzing, checks, install
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/test.sh

bench: all build/.setup-bench ## the benchmarks, beside mimalloc
	@. tools/lib.sh && configure build "" && build build benchmarks && tools/bench.sh build

gpu-test: ## the conformance suite on the GPU of this machine, or the emulated one; installs nothing
	@tools/gpu-test.sh

gpu-bench: ## what the library does on that GPU, beside the CUDA driver and PyTorch; installs nothing
	@tools/gpu-bench.sh

soak: build/.setup-test ## the same as test at ten times the counts, and 10 minutes for each fuzz target: more than an hour
	@HR_TEST_SCALE=$${HR_TEST_SCALE:-10} SANITIZER_SCALE=$${SANITIZER_SCALE:-0.1} FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) \
		HR_TEST_TIMEOUT=100 TEST_TIMEOUT=36000 tools/test.sh

fuzz: build/.setup-test ## every fuzz target for FUZZ_SECONDS (30)
	@FUZZ_SECONDS=$(or $(FUZZ_SECONDS),30) tools/test.sh fuzz

sanitize: build/.setup-test ## the tests under ASan and UBSan, and those with threads under TSan
	@tools/test.sh asan tsan

op-table: all ## write the table of ops in docs/runtime.md anew
	@. tools/lib.sh && configure build "" && build build runtime_op_memory && tools/op-table.sh build

examples: all ## the programs of examples/, at build/examples
	@. tools/lib.sh && configure build "" && build build examples

site: all ## the documentation as a site, at build/site/html; needs MkDocs, which it installs into the user's cache
	@packaging/site.sh build

install: all ## to PREFIX (/usr/local); DESTDIR is put in front
	@cmake --install build --prefix "$(PREFIX)"
	@[ -n "$(DESTDIR)" ] || case "$(PREFIX)" in \
		/usr|/usr/local) ldconfig 2>/dev/null || true ;; \
		*) echo "programs find the library there with LD_LIBRARY_PATH=$(PREFIX)/lib, or when they are linked with -Wl,-rpath,$(PREFIX)/lib" ;; esac

dist: ## the source archive of the last commit, at dist/; the same commit gives the same bytes
	@packaging/dist.py dist

package-test: build/.setup-package ## packages: wheel, Debian packages, SBOM; then clang, arm64 under emulation, and the site
	@packaging/test.sh

uninstall: all ## remove from PREFIX what install puts there
	@tools/uninstall.sh build "$(PREFIX)"

format: ## clang-format on all C files
	@tools/check-format.sh --fix

clean: ## remove what was built
	rm -rf build build-asan build-tsan build-fuzz build-gpu build-python build-clang build-arm64 dist

# Looks for what a level of tools/setup.sh needs, once.
build/.setup-%: tools/setup.sh
	@mkdir -p build && tools/setup.sh $* && touch $@
