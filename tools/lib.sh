# Shared by the scripts here; sourced from the root of the repository.

JOBS=${JOBS:-$(nproc)}
# The jobserver of a make that runs this script is not available to a make started here.
unset MAKEFLAGS MFLAGS MAKELEVEL

# configure <folder> [<compiler or ""> [cmake argument]...]: does nothing if the folder was configured with the same arguments, or with
# any if none are given, and tools/setup.sh has not run since. CMake itself detects new and changed files when building.
configure() {
	local folder=$1 compiler=${2:-} generator=() stamp=$1/.configured arguments
	shift $(($# < 2 ? $# : 2))
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

# build <folder> [target...]: prints only warnings and errors.
build() {
	local folder=$1 quiet=--quiet
	shift
	[ -f "$folder/build.ninja" ] || quiet=-s
	cmake --build "$folder" -j "$JOBS" ${1:+--target "$@"} -- $quiet 2>&1 | { grep --line-buffered -vE '^(ninja: no work to do|-- |\[ *[0-9]+%\])' || true; }
	return "${PIPESTATUS[0]}"
}

# run_ctest <build folder> <argument>...: prints a line for each test as it ends, also in a pipe. The array wrapper is prefixed to ctest. One test more than
# there are processors, because many wait for something.
run_ctest() {
	local folder=$1
	shift
	"${wrapper[@]}" ctest --test-dir "$folder" -j $((JOBS + 1)) --output-on-failure --no-tests=error "$@" | grep --line-buffered -v '^ *Start '
}

# configure_gpu: configures build-gpu for machines on which nothing can be installed; needs gcc and CMake only.
configure_gpu() {
	configure build-gpu "$(command -v gcc || true)" -DHEADROOM_ZLIB=OFF -DHEADROOM_JANSSON=OFF -DHEADROOM_WERROR=OFF -DHEADROOM_TEST_GPU=ON
}

# gpu_backend <build folder>: the backend of GPU:0, "cuda" or "emulated".
gpu_backend() {
	"$1/headroom" devices | awk '$1 == "GPU:0" { print $2 }'
}
