# Shared by the scripts here; sourced from the root of the repository.

JOBS=${JOBS:-$(nproc)}
# A make above us would share its job slots with the one below, if only it knew about it.
unset MAKEFLAGS MFLAGS MAKELEVEL

# configure <folder> <compiler or ""> [cmake argument]...: quick when it was done before with the same arguments, or is asked for with
# none, and tools/setup.sh has not run since. CMake itself notices new and changed files when building.
configure() {
	local folder=$1 compiler=$2 generator=() stamp=$1/.configured arguments
	shift 2
	arguments=$*
	if [ -f "$stamp" ]; then
		[ $# -gt 0 ] || arguments=$(cat "$stamp")
		if [ "$arguments" = "$(cat "$stamp")" ] && [ -z "$(find build -maxdepth 1 -name '.setup-*' -newer "$stamp" 2>/dev/null)" ]; then return 0; fi
	fi
	if [ ! -f "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
	mkdir -p "$folder"
	rm -f "$stamp"
	cmake -S . -B "$folder" "${generator[@]}" ${compiler:+-DCMAKE_C_COMPILER="$compiler"} "$@" >"$folder/configure.log" 2>&1 ||
		{ cat "$folder/configure.log" >&2; return 1; }
	printf '%s' "$arguments" >"$stamp"
}

# build <folder> [target...]: prints only what is worth reading.
build() {
	local folder=$1 quiet=--quiet
	shift
	[ -f "$folder/build.ninja" ] || quiet=-s
	cmake --build "$folder" -j "$JOBS" ${1:+--target "$@"} -- $quiet 2>&1 | { grep --line-buffered -vE '^(ninja: no work to do|-- |\[ *[0-9]+%\])' || true; }
	return "${PIPESTATUS[0]}"
}

# run_ctest <build folder> <argument>...: a line for each test as it ends, in a pipe too. The array wrapper, if it is set, comes before ctest.
run_ctest() {
	local folder=$1
	shift
	"${wrapper[@]}" ctest --test-dir "$folder" -j "$JOBS" --output-on-failure --no-tests=error "$@" | grep --line-buffered -v '^ *Start '
}

# configure_gpu: the folder build-gpu, for machines on which nothing can be installed: gcc and CMake are enough.
configure_gpu() {
	configure build-gpu "$(command -v gcc || true)" -DHEADROOM_ZLIB=OFF -DHEADROOM_JANSSON=OFF -DHEADROOM_WERROR=OFF -DHEADROOM_TEST_GPU=ON
}

# gpu_backend <build folder>: what GPU:0 is, "cuda" or "emulated".
gpu_backend() {
	"$1/headroom" devices | awk '$1 == "GPU:0" { print $2 }'
}
