/* card.h - computing on a CUDA card: what the card has, its kernels, and the launch of an op.
 *
 *     PROGRAM   a file of card/kernels/, compiled for one dtype. NVRTC compiles it when one of its kernels is first launched; the result is kept in a
 *               cache on disk (cache.c)
 *     LAUNCH    an op on the card: its work, and the stream. The row of the op names the function that queues its kernels
 *
 * A card exists for each device that can run kernels and has NVRTC, from its first session to hr_shutdown. */
#ifndef HR_CARD_CARD_H
#define HR_CARD_CARD_H

#include "core/device/kernels.h"
#include "runtime/card/kernels/arguments.h"
#include "runtime/card/libraries.h"
#include "runtime/engine/op.h"

/* ---- programs: name, file ---- */

#define HR__PROGRAMS(X)      \
	X(FORMULAS, "formulas")  \
	X(ELEMENTS, "elements")  \
	X(CHAIN, "chain")        \
	X(REDUCE, "reduce")      \
	X(ROWS, "rows")          \
	X(NORM, "norm")          \
	X(MOVE, "move")          \
	X(STRIPS, "strips")      \
	X(SCATTER, "scatter")    \
	X(CAST, "cast")          \
	X(UPDATE, "update")      \
	X(RANDOM, "random")      \
	X(POOL, "pool")          \
	X(CONV, "conv")          \
	X(ATTEND, "attend")      \
	X(ATTEND_TENSOR, "attend_tensor") \
	X(ATTEND_BFLOAT16, "attend_bfloat16")

enum hr__card_program {
#define HR__PROGRAM_ENUM(name, file) HR__PROGRAM_##name,
	HR__PROGRAMS(HR__PROGRAM_ENUM)
#undef HR__PROGRAM_ENUM
	HR__PROGRAM_COUNT
};

/* The text of a program, without what all begin with (prelude, arguments). */
typedef struct hr__card_source {
	const char *name, *text;
	size_t bytes;
} hr__card_source;
/* HR__PROGRAM_COUNT: the common beginning. */
hr__card_source hr__source_of(enum hr__card_program program);

/* ---- the card ---- */

typedef struct hr__card hr__card;

typedef struct hr__card_facts {
	hr__device *device;
	hr__processors processors;
	int arch;      /* 90: what kernels are compiled for */
	bool is_exact; /* machine code for that architecture; else PTX, which the driver compiles */
	const hr__nvrtc_calls *nvrtc;
	int nvrtc_major, nvrtc_minor;
	const hr__cublaslt_calls *cublaslt; /* NULL: not found */
	char no_cublaslt[256];              /* why */
} hr__card_facts;

/* The card of a device. NULL, with the reason in [why], if its ops are computed by the host: the device is no card, or NVRTC is not found, or does
 * not know the card. Thread-safe. */
hr__card *hr__card_of(hr__device *device, char *why, size_t capacity);
const hr__card_facts *hr__card_facts_of(const hr__card *card);
/* The host computes ops of a kind if this is false: the library for it is missing, or it has no kernel. */
bool hr__card_serves(const hr__card *card, enum hr__op_kind kind);
/* At hr_shutdown: unloads all modules. [forgets]: in the child of a fork, nothing is released. */
void hr__cards_end(bool forgets);

/* ---- launches ---- */

typedef struct hr__launch {
	hr__card *card;
	const hr__native *native;
	const hr__op *op;
	const hr__work *work; /* addresses are the device's; scratch is of the size that the row's workspace function returned */
	hr__k_faults faults;  /* for kernels that can find errors */
} hr__launch;

/* Queues an op on the card: like hr__job_queue. [faults]: where the kernels store the first error. */
hr_status hr__card_queue(hr__card *card, enum hr__op_kind kind, const hr__work *work, hr_stream stream, const hr__k_faults *faults);
/* Queues a copy of [bytes] from the card to pinned memory, by a kernel. A card carries out the copies of all streams in the order in which they were
 * queued, so hr_stream_copy waits for all evictions that are under way. For little: a kernel is slower than the card's copy engine. */
hr_status hr__card_read(hr__card *card, void *to, const void *from, uint64_t bytes, hr_stream stream);
/* How many ops of a kind were queued. */
uint64_t hr__card_queued(const hr__card *card, enum hr__op_kind kind);

/* For launch functions: launches kernel [name] of the program compiled for [dtype]; *arguments is its parameter. */
hr_status hr__launch_kernel(const hr__launch *launch, enum hr__card_program program, hr_dtype dtype, const char *name, const hr__grid *grid, void *arguments);
/* A grid of [threads] of one dimension, in blocks of HR__BLOCK, at most as many as keep the card busy; kernels go on from there in strides. */
#define HR__BLOCK 256u
hr__grid hr__launch_grid(const hr__launch *launch, int64_t threads);

/* The dtype of the program that computes elements of [type]: float32 for bfloat16. */
#define HR__IS_NARROW(type) ((type)->dtype == HR_DTYPE_BFLOAT16)
hr_dtype hr__launch_dtype(const hr__type *type);

/* Elements that a thread reads and writes at once: N of the programs. */
int64_t hr__launch_pack(hr_dtype dtype);
/* Whether rows of [length] at these addresses can be read in packs. */
bool hr__launch_is_even(hr_dtype dtype, int64_t length, const void *const *addresses, int count);
/* Launches a kernel of GROUP_KERNELS: a warp for each of [items] if they are short, else a block. */
hr_status hr__launch_groups(const hr__launch *launch, enum hr__card_program program, hr_dtype dtype, const char *name, int64_t items, int64_t length,
                            bool even, void *arguments);
/* What a kernel is told of an op's index inputs. */
#define HR__IS_WIDE(type) ((type)->dtype == HR_DTYPE_INT64)
/* How often [unit] fits into [count], rounded up. */
#define HR__UP(count, unit) (((count) + (unit) - 1) / (unit))

/* cuBLASLt's handle, made when it is first needed. */
hr_status hr__card_cublaslt(hr__card *card, cublasLtHandle_t *out);

/* ---- chains (chain_text.c) ---- */

/* Whether the card has kernels for a chain (engine/chain.h). They are compiled when they are first needed. */
struct hr__chain;
bool hr__card_has_chain(hr__card *card, const struct hr__chain *chain);

/* ---- programs (program.c, cache.c) ---- */

#define HR__PROGRAM_PARTS 5
/* Compiles the parts as one text, or reads it from the cache. *image is from hr__os()->alloc. */
hr_status hr__parts_build(const hr__card_facts *facts, const char *name, const hr__card_source *parts, int count, hr_dtype dtype, void **image, size_t *bytes);

/* Compiles a program, or reads it from the cache. *image is from hr__os()->alloc. */
hr_status hr__program_build(const hr__card_facts *facts, enum hr__card_program program, hr_dtype dtype, void **image, size_t *bytes);

typedef struct hr__cache_key {
	uint64_t high, low;
} hr__cache_key;
void hr__cache_key_add(hr__cache_key *key, const void *text, size_t bytes);
/* false: it is not there, or damaged. *image is from hr__os()->alloc. */
bool hr__cache_read(const hr__cache_key *key, void **image, size_t *bytes);
/* Does nothing where the folder cannot be written. */
void hr__cache_write(const hr__cache_key *key, const void *image, size_t bytes);

#endif
