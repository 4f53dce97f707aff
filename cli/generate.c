/* generate.c - `headroom generate`: writes a synthetic trace, for cases that the recorded traces do not cover.
 *
 * One thread gives a CSV as in traces/. Several give an RMM log, which has a column for the thread: each thread runs a program of
 * its own, and one free in twenty is made by a random thread. */
#define _GNU_SOURCE
#include "generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/status.h"
#include "core/base/text.h"
#include "command.h"
#include "analysis/export/export_file.h"
#include "quote.h"
#include "tape.h"

#define THREADS_MOST 256
#define STREAMS_MOST 256
#define EVENTS_DEFAULT 100000
#define FIRST_ADDRESS UINT64_C(0x7f0000000000) /* of RMM logs; each address is used once */
#define BLOCK_SPACING 256u

enum { SEED, KIND, EVENTS, STREAMS, THREADS, OUT };

static const hr__option options[] = {
	[SEED] = { "--seed", "N", "seed of the random numbers; default 1. The same arguments always give the same trace" },
	[KIND] = { "--kind", "KIND",
	           "train (default): a transformer, sequences of changing length; serve: requests with growing caches; "
	           "random: all sizes and lifetimes" },
	[EVENTS] = { "--events", "N", "how many allocations and frees together, over all threads; default 100000" },
	[STREAMS] = { "--streams", "N", "spread the work over so many streams, with frees on other streams; default 1" },
	[THREADS] = { "--threads", "N", "so many threads, some blocks freed by another; above 1 an RMM log is written. Default 1" },
	[OUT] = { "--out", "FILE", "where to write it, replacing a file; default: standard output, unless that is a terminal" },
	{ NULL, NULL, NULL },
};

struct plan {
	const hr__made_kind *kind;
	uint64_t seed, events, streams, threads;
};

/* ---- actors ---- */

static void free_actors(hr__actor *actors, uint64_t count)
{
	for (uint64_t i = 0; actors && i < count; i++) {
		free(actors[i].events);
		free(actors[i].sizes);
	}
	free(actors);
}

static hr__actor *make_actors(const struct plan *plan)
{
	hr__actor *actors = calloc(plan->threads, sizeof *actors);
	for (uint64_t i = 0; actors && i < plan->threads; i++) {
		hr__actor *actor = &actors[i];
		actor->random = (plan->seed * 1000003 + i) * UINT64_C(0xD1342543DE82EF95);
		actor->streams = (uint32_t)plan->streams;
		actor->wanted = (size_t)(plan->events / plan->threads + (i < plan->events % plan->threads));
		actor->events = malloc((actor->wanted + 1) * sizeof *actor->events);
		actor->sizes = malloc((actor->wanted + 1) * sizeof *actor->sizes);
		if (!actor->events || !actor->sizes) {
			free_actors(actors, plan->threads);
			return NULL;
		}
		plan->kind->run(actor);
	}
	return actors;
}

/* ---- writing ---- */

static void write_csv_event(FILE *file, const hr__made_event *event)
{
	fprintf(file, "%llu,%c,%u,%llu,%u\n", (unsigned long long)event->time_us, event->frees ? 'f' : 'a', event->block,
	        (unsigned long long)event->bytes, event->stream);
}

/* Writes an event of [actor]; addresses of different actors are disjoint. */
static void write_rmm_event(FILE *file, const struct plan *plan, hr__actor *actor, uint64_t number, const hr__made_event *event)
{
	uint64_t us = event->time_us, thread = number;
	uint64_t address = FIRST_ADDRESS + (event->block * plan->threads + number) * BLOCK_SPACING;
	if (event->frees && hr__actor_chance(actor, 20)) thread = hr__actor_random(actor, plan->threads);
	fprintf(file, "%llu,%02llu:%02llu:%02llu.%06llu,%s,0x%llx,%llu,0x%x\n", (unsigned long long)(1000 + thread),
	        (unsigned long long)(us / 3600000000u % 24), (unsigned long long)(us / 60000000 % 60),
	        (unsigned long long)(us / 1000000 % 60), (unsigned long long)(us % 1000000), event->frees ? "free" : "allocate",
	        (unsigned long long)address, (unsigned long long)event->bytes, event->stream);
}

/* Writes all events in order of time, those of one thread in their own order. */
static void write_events(FILE *file, const struct plan *plan, hr__actor *actors)
{
	size_t next[THREADS_MOST] = { 0 };
	fputs(plan->threads > 1 ? "Thread,Time,Action,Pointer,Size,Stream\n" : "time_us,action,id,bytes,stream\n", file);
	for (;;) {
		uint64_t first = UINT64_MAX;
		for (uint64_t i = 0; i < plan->threads; i++) {
			if (next[i] == actors[i].count) continue;
			if (first == UINT64_MAX || actors[i].events[next[i]].time_us < actors[first].events[next[first]].time_us) first = i;
		}
		if (first == UINT64_MAX) return;
		const hr__made_event *event = &actors[first].events[next[first]++];
		if (plan->threads > 1) write_rmm_event(file, plan, &actors[first], first, event);
		else write_csv_event(file, event);
	}
}

static ssize_t write_cookie(void *file, const char *bytes, size_t length)
{
	return hr__export_file_write(file, bytes, length) ? (ssize_t)length : 0;
}

static int write_file(const char *path, const struct plan *plan, hr__actor *actors)
{
	hr__export_file *out;
	if (hr__export_file_open(path, &out)) return hr__complain_last();
	hr_status status = HR_OK;
	FILE *file = fopencookie(out, "w", (cookie_io_functions_t){ .write = write_cookie });
	if (file) {
		write_events(file, plan, actors);
		fclose(file); /* write errors are kept in [out] */
	} else {
		status = hr__fail(HR_NO_HOST_MEMORY, "no memory to write %s", path);
	}
	return hr__export_file_close(out, status) ? hr__complain_last() : HR__EXIT_DONE;
}

/* ---- the command ---- */

static const hr__made_kind *find_kind(const char *name)
{
	const char *names[16];
	char quoted[HR__QUOTE_BYTES];
	size_t count = 0;
	for (; hr__made_kinds[count].name; count++) {
		if (strcmp(hr__made_kinds[count].name, name) == 0) return &hr__made_kinds[count];
		names[count] = hr__made_kinds[count].name;
	}
	names[count] = NULL;
	const char *near = hr__nearest(name, names);
	hr__complain("generate: no kind %s; there are train, serve and random%s%s%s", hr__quote(name, strlen(name), quoted),
	             near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
	return NULL;
}

static int run(const hr__arguments *arguments)
{
	struct plan plan = { .kind = &hr__made_kinds[0], .seed = 1, .events = EVENTS_DEFAULT, .streams = 1, .threads = 1 };
	if (!hr__arguments_count(arguments, SEED, 0, INT64_MAX, &plan.seed)) return HR__EXIT_BAD;
	if (!hr__arguments_count(arguments, EVENTS, 1, HR__TAPE_EVENTS_MAX, &plan.events)) return HR__EXIT_BAD;
	if (!hr__arguments_count(arguments, STREAMS, 1, STREAMS_MOST, &plan.streams)) return HR__EXIT_BAD;
	if (!hr__arguments_count(arguments, THREADS, 1, THREADS_MOST, &plan.threads)) return HR__EXIT_BAD;
	if (hr__arguments_has(arguments, KIND) && !(plan.kind = find_kind(arguments->values[KIND]))) return HR__EXIT_BAD;
	if (!hr__arguments_has(arguments, OUT) && isatty(STDOUT_FILENO))
		return hr__complain("generate: %llu events would fill this terminal; write them to a file with --out FILE, or pipe them into "
		                    "'headroom replay -'",
		                    (unsigned long long)plan.events);
	hr__actor *actors = make_actors(&plan);
	if (!actors) return hr__complain("no memory for %llu event%s", (unsigned long long)plan.events, hr__plural(plan.events));
	int exit_status = HR__EXIT_DONE;
	if (hr__arguments_has(arguments, OUT)) exit_status = write_file(arguments->values[OUT], &plan, actors);
	else write_events(stdout, &plan, actors);
	free_actors(actors, plan.threads);
	return exit_status;
}

const hr__command hr__command_generate = {
	.name = "generate",
	.operands = "",
	.summary = "write a made-up trace: training, serving or random, with any number of streams and threads",
	.about =
		"Writes a trace of a program that does not exist but requests memory as real programs do, to try an allocator on more "
		"than the recorded traces. The trace ends after the given number of events, with blocks still live. One thread gives a "
		"CSV as in traces/, several give an RMM log.",
	.examples =
		"headroom generate --kind serve --seed 7 | headroom replay - --find-limit\n"
		"headroom generate --kind train --streams 4 --events 1000000 --out train.csv\n"
		"headroom generate --kind random --threads 8 --streams 8 --out rmm_log.csv",
	.options = options,
	.run = run,
};
