/* rank.h - the rank of this process in its job: which of many processes that a launcher started it is.
 *
 * Launchers say it in environment variables: HEADROOM_RANK=3/8 (for a launcher that is not known), torchrun, Open MPI, MPICH and Intel MPI
 * (PMI), Slurm. The first of these that sets both a rank and a number of ranks decides: PyTorch's torchrun may run below srun, whose
 * variables are then those of the node. */
#ifndef HR_OS_RANK_H
#define HR_OS_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/shared.h"
#include "core/base/text/json.h"

#define HR__RANKS_MAX (1u << 20)
#define HR__RANK_LOCAL_UNKNOWN UINT32_MAX

typedef struct hr__rank {
	uint32_t count;  /* ranks of the job; 0: the process is not a rank, and the other fields are 0 */
	uint32_t number; /* below count */
	uint32_t local;  /* its number on this host; HR__RANK_LOCAL_UNKNOWN */
	uint32_t zero;
	char job[64];    /* the same text for the job's ranks on this host, and another for other jobs */
	char host[48];   /* name of this host */
} hr__rank;

/* Reads the environment. Never fails: variables that are not valid are ignored, HEADROOM_RANK with a message for hr_environment_check. */
void hr__rank_read(hr__rank *out);

/* Whether the fields agree with each other. Terminates the texts and replaces what is not printable ASCII. For ranks from files. */
HR__SHARED bool hr__rank_check(hr__rank *rank);

/* The text that replaces "%r" in file names: the number, or "none" for a process that is not a rank. */
void hr__rank_text(const hr__rank *rank, char *out, size_t capacity);

/* Writes the field "rank" of an object; nothing for a process that is not a rank. */
HR__SHARED void hr__rank_json(hr__json *json, const hr__rank *rank);

#endif
