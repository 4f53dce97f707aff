/* card.c - see card.h. */
#include "runtime/card/chains.h"

#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/engine/engine.h"

#define DTYPES (HR_DTYPE_BFLOAT16 + 1)
#define KERNELS_MAX 1024u /* of all programs; a power of two */
#define NAME_CAPACITY 40
#define ARCHS_MAX 64

/* A kernel that was looked up. */
struct known_kernel {
	hr__kernel *kernel; /* NULL: the entry is free */
	uint8_t program, dtype;
	char name[NAME_CAPACITY];
};

#define CHAINS_MAX 256u

struct known_chain {
	hr__cache_key key;
	hr__module *module;
	hr__kernel *kernels[2]; /* NULL: it could not be made */
};

struct hr__card {
	hr__card_facts facts;
	hr__monitor *monitor; /* guards all below */
	hr__module *modules[HR__PROGRAM_COUNT][DTYPES];
	struct known_kernel kernels[KERNELS_MAX];
	struct known_chain chains[CHAINS_MAX];
	uint32_t chain_count;
	cublasLtHandle_t cublaslt;
	uint64_t queued[HR__OP_COUNT]; /* atomic: ops that the card computed */
};

/* One entry per device, made by its first session. */
static struct {
	hr__card *card;
	bool tried;
	char why[256];
} cards[HR__MAX_DEVICES]; /* guarded by the monitor below, like the libraries */
static hr__monitor *making; /* made under hr__runtime_lock, never destroyed */

/* ---- opening ---- */

/* The newest architecture that NVRTC compiles for and the card runs: its own, or an older one as PTX. */
static bool choose_arch(hr__card_facts *facts, char *why, size_t capacity)
{
	int archs[ARCHS_MAX] = { 0 }, count = 0, own = facts->processors.major * 10 + facts->processors.minor;
	if (facts->nvrtc->nvrtcVersion(&facts->nvrtc_major, &facts->nvrtc_minor) || facts->nvrtc->nvrtcGetNumSupportedArchs(&count) || count < 1 ||
	    count > ARCHS_MAX || facts->nvrtc->nvrtcGetSupportedArchs(archs)) {
		snprintf(why, capacity, "NVRTC does not say what it compiles for");
		return false;
	}
	for (int i = 0; i < count; i++)
		if (archs[i] <= own && archs[i] > facts->arch) facts->arch = archs[i];
	facts->is_exact = facts->arch == own;
	if (facts->arch) return true;
	snprintf(why, capacity, "compute capability %d.%d is too old for NVRTC %d.%d, which compiles for %d.%d and newer", facts->processors.major,
	         facts->processors.minor, facts->nvrtc_major, facts->nvrtc_minor, archs[0] / 10, archs[0] % 10);
	return false;
}

static bool find_facts(hr__device *device, hr__card_facts *facts, char *why, size_t capacity)
{
	hr__last before = hr__last_get();
	*facts = (hr__card_facts){ .device = device };
	if (hr__device_processors(device, &facts->processors)) {
		snprintf(why, capacity, "%s", hr_last_message());
		hr__last_set(&before);
		return false;
	}
	facts->nvrtc = hr__nvrtc_find(why, capacity);
	if (!facts->nvrtc || !choose_arch(facts, why, capacity)) return false;
	facts->cublaslt = hr__cublaslt_find(facts->no_cublaslt, sizeof facts->no_cublaslt);
	return true;
}

static hr__card *make_card(hr__device *device, char *why, size_t capacity)
{
	hr__card_facts facts;
	void *block;
	if (!find_facts(device, &facts, why, capacity)) return NULL;
	if (hr__os()->alloc(sizeof(hr__card), &block)) {
		snprintf(why, capacity, "there is no host memory");
		return NULL;
	}
	hr__card *card = block;
	card->facts = facts;
	if (!hr__os()->monitor_create(&card->monitor)) return card;
	snprintf(why, capacity, "there is no host memory");
	hr__os()->free(block, sizeof *card);
	return NULL;
}

static hr__monitor *maker(void)
{
	hr__monitor *made = NULL;
	if (!__atomic_load_n(&making, __ATOMIC_ACQUIRE) && hr__os()->monitor_create(&made)) return NULL;
	if (!made) return making;
	hr__lock_take(&hr__runtime_lock);
	bool mine = !making;
	if (mine) __atomic_store_n(&making, made, __ATOMIC_RELEASE);
	hr__lock_release(&hr__runtime_lock);
	if (!mine) hr__os()->monitor_destroy(made);
	return making;
}

hr__card *hr__card_of(hr__device *device, char *why, size_t capacity)
{
	uint32_t i = hr__device_index(device);
	hr__monitor *monitor = maker();
	if (!monitor) {
		snprintf(why, capacity, "there is no host memory");
		return NULL;
	}
	hr__os()->monitor_enter(monitor);
	if (!cards[i].tried) cards[i].card = make_card(device, cards[i].why, sizeof cards[i].why);
	cards[i].tried = true;
	snprintf(why, capacity, "%s", cards[i].why);
	hr__card *card = cards[i].card;
	hr__os()->monitor_leave(monitor);
	return card;
}

const hr__card_facts *hr__card_facts_of(const hr__card *card)
{
	return &card->facts;
}

bool hr__card_serves(const hr__card *card, enum hr__op_kind kind)
{
	const hr__op *op = &hr__ops[kind];
	return op->launch && (op->by != HR__BY_CUBLASLT || card->facts.cublaslt);
}

/* ---- ending ---- */

static void end_card(hr__card *card)
{
	for (int i = 0; i < HR__PROGRAM_COUNT; i++) {
		for (int k = 0; k < DTYPES; k++)
			if (card->modules[i][k]) hr__module_unload(card->facts.device, card->modules[i][k]);
	}
	for (uint32_t i = 0; i < card->chain_count; i++)
		if (card->chains[i].module) hr__module_unload(card->facts.device, card->chains[i].module);
	if (card->cublaslt) card->facts.cublaslt->cublasLtDestroy(card->cublaslt);
	hr__os()->monitor_destroy(card->monitor);
}

void hr__cards_end(bool forgets)
{
	for (uint32_t i = 0; i < HR__MAX_DEVICES; i++) {
		hr__card *card = cards[i].card;
		if (card && !forgets) end_card(card);
		if (card) hr__os()->free(card, sizeof *card);
	}
	memset(cards, 0, sizeof cards);
	if (making && !forgets) hr__os()->monitor_destroy(making);
	making = NULL;
}

/* ---- kernels ---- */

static hr_status load(hr__card *card, enum hr__card_program program, hr_dtype dtype)
{
	void *image;
	size_t bytes;
	hr_status status = hr__program_build(&card->facts, program, dtype, &image, &bytes);
	if (status) return status;
	status = hr__module_load(card->facts.device, image, &card->modules[program][dtype]);
	hr__os()->free(image, bytes);
	return status;
}

static uint32_t place_of(enum hr__card_program program, hr_dtype dtype, const char *name)
{
	uint32_t hash = (uint32_t)program * 31 + (uint32_t)dtype;
	for (const char *at = name; *at; at++) hash = (hash ^ (unsigned char)*at) * 16777619u;
	return hash % KERNELS_MAX;
}

/* The entry of a kernel: its own, or the free one where it belongs. There are fewer kernels than entries. */
static struct known_kernel *entry_of(hr__card *card, enum hr__card_program program, hr_dtype dtype, const char *name)
{
	uint32_t place = place_of(program, dtype, name);
	for (;; place = (place + 1) % KERNELS_MAX) {
		struct known_kernel *at = &card->kernels[place];
		if (!at->kernel || (at->program == program && at->dtype == dtype && !strcmp(at->name, name))) return at;
	}
}

/* Call in the card's monitor. */
static hr_status find_kernel(hr__card *card, enum hr__card_program program, hr_dtype dtype, const char *name, hr__kernel **out)
{
	struct known_kernel *entry = entry_of(card, program, dtype, name);
	hr_status status = HR_OK;
	if (!entry->kernel) {
		if (!card->modules[program][dtype]) status = load(card, program, dtype);
		if (!status) status = hr__module_kernel(card->facts.device, card->modules[program][dtype], name, &entry->kernel);
		entry->program = (uint8_t)program;
		entry->dtype = (uint8_t)dtype;
		snprintf(entry->name, sizeof entry->name, "%s", name);
	}
	*out = entry->kernel;
	return status;
}

hr_status hr__launch_kernel(const hr__launch *launch, enum hr__card_program program, hr_dtype dtype, const char *name, const hr__grid *grid, void *arguments)
{
	hr__kernel *kernel;
	HR_ASSERT(strlen(name) < NAME_CAPACITY && (int)dtype < DTYPES);
	hr__os()->monitor_enter(launch->card->monitor);
	hr_status status = find_kernel(launch->card, program, dtype, name, &kernel);
	hr__os()->monitor_leave(launch->card->monitor);
	return status ? status : hr__kernel_launch(launch->native, kernel, name, grid, arguments);
}

/* ---- chains ---- */

static hr__cache_key key_of(const hr__chain *chain)
{
	hr__cache_key key = { 0 };
	uint32_t numbers[] = { (uint32_t)chain->dtype, chain->steps, chain->inputs };
	hr__cache_key_add(&key, numbers, sizeof numbers);
	for (uint32_t i = 0; i < chain->steps; i++) {
		const hr__chain_step *step = &chain->step[i];
		hr__cache_key_add(&key, (uint8_t[]){ step->kind, step->a, step->b, step->narrow }, 4);
	}
	for (uint32_t i = 0; i < chain->inputs; i++) hr__cache_key_add(&key, (uint8_t[]){ chain->in_narrow[i], chain->is_offset[i] }, 2);
	return key;
}

static hr_status load_chain(hr__card *card, const hr__chain *chain, struct known_chain *out)
{
	void *image;
	size_t bytes;
	hr_status status = hr__chain_build(&card->facts, chain, &image, &bytes);
	if (status) return status;
	status = hr__module_load(card->facts.device, image, &out->module);
	hr__os()->free(image, bytes);
	if (!status) status = hr__module_kernel(card->facts.device, out->module, "hr_chain_1", &out->kernels[0]);
	if (!status) status = hr__module_kernel(card->facts.device, out->module, "hr_chain_n", &out->kernels[1]);
	if (status) out->kernels[0] = NULL;
	return status;
}

/* Call in the card's monitor. A chain that could not be made is kept too, so that it is tried once. */
static hr_status find_chain(hr__card *card, const hr__chain *chain, const struct known_chain **out)
{
	hr__cache_key key = key_of(chain);
	for (uint32_t i = 0; i < card->chain_count; i++) {
		*out = &card->chains[i];
		if ((*out)->key.high == key.high && (*out)->key.low == key.low) return (*out)->kernels[0] ? HR_OK : hr__fail(HR_DEVICE_ERROR, "the kernels of a chain could not be made");
	}
	if (card->chain_count == CHAINS_MAX) return hr__fail(HR_TOO_MANY, "a card keeps %u chains", CHAINS_MAX);
	struct known_chain *made = &card->chains[card->chain_count++];
	made->key = key;
	*out = made;
	return load_chain(card, chain, made);
}

hr_status hr__card_chain(hr__card *card, const hr__chain *chain, hr__kernel *out[2])
{
	const struct known_chain *known;
	hr__os()->monitor_enter(card->monitor);
	hr_status status = find_chain(card, chain, &known);
	for (int i = 0; i < 2 && !status; i++) out[i] = known->kernels[i];
	hr__os()->monitor_leave(card->monitor);
	return status;
}

bool hr__card_has_chain(hr__card *card, const hr__chain *chain)
{
	hr__kernel *kernels[2];
	hr__last before = hr__last_get();
	bool has = !hr__card_chain(card, chain, kernels);
	hr__last_set(&before);
	return has;
}

hr__grid hr__launch_grid(const hr__launch *launch, int64_t threads)
{
	uint32_t most = launch->card->facts.processors.count * 16; /* 8 blocks of 256 fit on a processor; twice that evens out their ends */
	uint64_t blocks = ((uint64_t)threads + HR__BLOCK - 1) / HR__BLOCK;
	return (hr__grid){ .x = blocks < most ? (uint32_t)blocks : most ? most : 1, .threads = HR__BLOCK };
}

hr_dtype hr__launch_dtype(const hr__type *type)
{
	return HR__IS_NARROW(type) ? HR_DTYPE_FLOAT32 : type->dtype;
}

int64_t hr__launch_pack(hr_dtype dtype)
{
	int64_t fit = 16 / (int64_t)hr_dtype_size(dtype);
	return fit < 4 ? fit : 4;
}

bool hr__launch_is_even(hr_dtype dtype, int64_t length, const void *const *addresses, int count)
{
	uintptr_t bits = 0, bytes = (uintptr_t)hr__launch_pack(dtype) * hr_dtype_size(dtype);
	for (int i = 0; i < count; i++) bits |= (uintptr_t)addresses[i];
	return length % hr__launch_pack(dtype) == 0 && bits % bytes == 0;
}

#define WARP 32u
#define WARP_LENGTH 1024 /* elements of a row for which a warp is enough */

hr_status hr__launch_groups(const hr__launch *launch, enum hr__card_program program, hr_dtype dtype, const char *name, int64_t items, int64_t length,
                            bool even, void *arguments)
{
	char full[NAME_CAPACITY];
	bool is_short = length <= WARP_LENGTH;
	snprintf(full, sizeof full, "hr_%s_%s_%c", name, is_short ? "warp" : "block", even ? 'n' : '1');
	hr__grid grid = hr__launch_grid(launch, items * (is_short ? WARP : HR__BLOCK));
	return hr__launch_kernel(launch, program, dtype, full, &grid, arguments);
}

/* ---- ops ---- */

static hr_status call_launch(const hr__native *native, void *argument)
{
	hr__launch *launch = argument;
	launch->native = native;
	return launch->op->launch(launch);
}

hr_status hr__card_queue(hr__card *card, enum hr__op_kind kind, const hr__work *work, hr_stream stream, const hr__k_faults *faults)
{
	hr__launch launch = { .card = card, .op = &hr__ops[kind], .work = work };
	if (faults) launch.faults = *faults;
	__atomic_fetch_add(&card->queued[kind], 1, __ATOMIC_RELAXED);
	return hr__device_native(card->facts.device, stream, call_launch, &launch);
}

uint64_t hr__card_queued(const hr__card *card, enum hr__op_kind kind)
{
	return __atomic_load_n(&card->queued[kind], __ATOMIC_RELAXED);
}

/* ---- cuBLASLt ---- */

hr_status hr__card_cublaslt(hr__card *card, cublasLtHandle_t *out)
{
	hr_status status = HR_OK;
	hr__os()->monitor_enter(card->monitor);
	if (!card->cublaslt) {
		int result = card->facts.cublaslt->cublasLtCreate(&card->cublaslt);
		if (result) {
			card->cublaslt = NULL;
			status = hr__fail(HR_DEVICE_ERROR, "cublasLtCreate on %s: %s", hr__device_name(card->facts.device),
			                  card->facts.cublaslt->cublasLtGetStatusName(result));
		}
	}
	*out = card->cublaslt;
	hr__os()->monitor_leave(card->monitor);
	return status;
}
