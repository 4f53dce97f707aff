/* generate_kinds.c - three kinds of programs that request memory as real ones do.
 *
 *     train    a transformer trained with sequences of varying length: permanent weights, activations that accumulate in the
 *              forward pass and are freed in reverse in the backward pass, gradients, optimizer state from the first step on
 *     serve    a language model that answers requests: key and value caches that grow by being copied to larger blocks, batches of
 *              varying size, requests that arrive and end
 *     random   sizes over five orders of magnitude, mostly short lifetimes, some long
 *
 * With several streams, blocks are allocated on one stream and freed on another: inputs are prefetched, gradients are reduced and
 * freed on a communication stream, answers are freed on the stream that reads them. */
#include "generate.h"

#include <string.h>

/* ---- events ---- */

uint64_t hr__actor_random(hr__actor *actor, uint64_t bound)
{
	/* splitmix64 */
	uint64_t x = actor->random += UINT64_C(0x9E3779B97F4A7C15);
	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
	x ^= x >> 31;
	return (uint64_t)(((unsigned __int128)x * bound) >> 64);
}

bool hr__actor_chance(hr__actor *actor, uint64_t n)
{
	return hr__actor_random(actor, n) == 0;
}

static bool begin_event(hr__actor *actor)
{
	actor->full = actor->count >= actor->wanted;
	if (actor->full) return false;
	actor->time_us += 1 + hr__actor_random(actor, 20);
	return true;
}

uint32_t hr__actor_alloc(hr__actor *actor, uint64_t bytes, uint32_t stream)
{
	if (!begin_event(actor)) return HR__NO_BLOCK;
	if (bytes == 0) bytes = 1;
	actor->sizes[actor->blocks] = bytes;
	actor->events[actor->count++] = (hr__made_event){
		.time_us = actor->time_us, .bytes = bytes, .block = actor->blocks, .stream = (uint16_t)stream
	};
	return actor->blocks++;
}

void hr__actor_free(hr__actor *actor, uint32_t block, uint32_t stream)
{
	if (block == HR__NO_BLOCK || !begin_event(actor)) return;
	actor->events[actor->count++] = (hr__made_event){
		.time_us = actor->time_us, .bytes = actor->sizes[block], .block = block, .stream = (uint16_t)stream, .frees = true
	};
}

/* A random stream other than 0; 0 when there is no other. */
static uint32_t side_stream(hr__actor *actor)
{
	return actor->streams > 1 ? 1 + (uint32_t)hr__actor_random(actor, actor->streams - 1) : 0;
}

/* ---- train ---- */

#define LAYERS_MOST 48u
#define PARTS 6u /* per layer, of weights and of activations */

struct model {
	uint64_t layers, hidden, vocabulary, batch, longest, heads;
	bool flash;              /* attention without a matrix of scores */
	uint64_t weights[PARTS]; /* bytes of each part of a layer */
	bool stepped;            /* the optimizer state is allocated */
};

static struct model choose_model(hr__actor *actor)
{
	static const uint64_t widths[] = { 512, 768, 1024, 1600, 2048, 4096 };
	struct model model = { 0 };
	model.layers = 8 + hr__actor_random(actor, LAYERS_MOST - 7);
	model.hidden = widths[hr__actor_random(actor, sizeof widths / sizeof *widths)];
	model.vocabulary = 16000 + 16 * hr__actor_random(actor, 8000);
	model.batch = 1 + hr__actor_random(actor, 16);
	model.longest = UINT64_C(512) << hr__actor_random(actor, 3);
	model.heads = model.hidden / 64;
	model.flash = hr__actor_chance(actor, 2);
	uint64_t square = model.hidden * model.hidden * 2;
	const uint64_t weights[PARTS] = { 3 * square, square, 4 * square, 4 * square, 4 * model.hidden, 18 * model.hidden };
	memcpy(model.weights, weights, sizeof weights);
	return model;
}

/* Bytes of the activations that a layer keeps for [tokens]. */
static void activation_sizes(const struct model *model, uint64_t tokens, uint64_t out[PARTS])
{
	uint64_t one = tokens * model->hidden * 2;
	const uint64_t sizes[PARTS] = { one, 3 * one, one, 4 * one, 4 * one, tokens * 8 };
	memcpy(out, sizes, sizeof sizes);
}

/* Allocates a block and frees it at once. */
static void touch(hr__actor *actor, uint64_t bytes, uint32_t stream)
{
	hr__actor_free(actor, hr__actor_alloc(actor, bytes, stream), stream);
}

static void forward(hr__actor *actor, const struct model *model, uint64_t length, uint32_t kept[LAYERS_MOST][PARTS])
{
	uint64_t sizes[PARTS];
	activation_sizes(model, model->batch * length, sizes);
	for (uint64_t layer = 0; layer < model->layers && !actor->full; layer++) {
		for (uint32_t part = 0; part < PARTS; part++) {
			kept[layer][part] = hr__actor_alloc(actor, sizes[part], 0);
			if (part == 1 && !model->flash) touch(actor, model->batch * model->heads * length * length * 2, 0);
			else if (hr__actor_chance(actor, 3)) touch(actor, sizes[part] / 2, 0);
		}
	}
}

/* Frees a layer's activations and makes its gradients. With several streams, large gradients are freed on another stream, which
 * allocates the reduced ones. */
static void backward_layer(hr__actor *actor, const struct model *model, uint64_t tokens, const uint32_t kept[PARTS],
                           uint32_t grads[PARTS])
{
	uint64_t sizes[PARTS];
	activation_sizes(model, tokens, sizes);
	for (uint32_t part = PARTS; part-- > 0 && !actor->full;) {
		uint32_t incoming = hr__actor_alloc(actor, sizes[part], 0);
		grads[part] = hr__actor_alloc(actor, model->weights[part], 0);
		hr__actor_free(actor, kept[part], 0);
		hr__actor_free(actor, incoming, 0);
		if (actor->streams > 1 && model->weights[part] > 1000000) {
			uint32_t stream = side_stream(actor), bucket = hr__actor_alloc(actor, model->weights[part], stream);
			hr__actor_free(actor, grads[part], stream);
			grads[part] = bucket;
		}
	}
}

static void optimize(hr__actor *actor, struct model *model, uint32_t grads[LAYERS_MOST][PARTS])
{
	for (uint64_t layer = 0; layer < model->layers && !actor->full; layer++) {
		for (uint32_t part = 0; part < PARTS; part++) {
			/* Two moments, never freed. */
			for (int moment = 0; moment < 2 && !model->stepped; moment++) hr__actor_alloc(actor, 2 * model->weights[part], 0);
			touch(actor, 2 * model->weights[part], 0);
			hr__actor_free(actor, grads[layer][part], 0);
		}
	}
	model->stepped = true;
}

static void train_step(hr__actor *actor, struct model *model)
{
	uint32_t kept[LAYERS_MOST][PARTS], grads[LAYERS_MOST][PARTS], from = side_stream(actor);
	/* A third of the batches have the maximum length, the others a random one. */
	uint64_t length = hr__actor_chance(actor, 3) ? model->longest : 8 + hr__actor_random(actor, model->longest - 8);
	uint64_t tokens = model->batch * length;
	uint32_t inputs = hr__actor_alloc(actor, tokens * 8, from), targets = hr__actor_alloc(actor, tokens * 8, from);
	uint32_t embedded = hr__actor_alloc(actor, tokens * model->hidden * 2, 0);
	forward(actor, model, length, kept);
	uint32_t logits = hr__actor_alloc(actor, tokens * model->vocabulary * 2, 0);
	touch(actor, tokens * model->vocabulary * 4, 0);
	touch(actor, 4, 0);
	hr__actor_free(actor, logits, 0);
	for (uint64_t layer = model->layers; layer-- > 0 && !actor->full;)
		backward_layer(actor, model, tokens, kept[layer], grads[layer]);
	hr__actor_free(actor, embedded, 0);
	hr__actor_free(actor, inputs, 0);
	hr__actor_free(actor, targets, 0);
	optimize(actor, model, grads);
}

static void train(hr__actor *actor)
{
	struct model model = choose_model(actor);
	hr__actor_alloc(actor, model.vocabulary * model.hidden * 2, 0);
	for (uint64_t layer = 0; layer < model.layers; layer++)
		for (uint32_t part = 0; part < PARTS; part++) hr__actor_alloc(actor, model.weights[part], 0);
	while (!actor->full) train_step(actor, &model);
}

/* ---- serve ---- */

#define REQUESTS_MOST 64u
#define KV_LAYERS_MOST 32u

struct serve_request {
	uint64_t tokens, capacity, last; /* generated so far; room in its caches; length at which it ends */
	uint32_t caches[KV_LAYERS_MOST];
	uint32_t stream;
	bool live;
};

struct server {
	uint64_t layers, hidden, kv_bytes; /* kv_bytes: of a token in one layer */
	uint64_t vocabulary, step;         /* step: tokens by which caches grow */
	struct serve_request requests[REQUESTS_MOST];
	uint32_t live, most;
};

static void begin_request(hr__actor *actor, struct server *server, struct serve_request *request)
{
	/* Most prompts are short, some very long. */
	uint64_t prompt = 16 + hr__actor_random(actor, 400) + (hr__actor_chance(actor, 8) ? hr__actor_random(actor, 6000) : 0);
	*request = (struct serve_request){ .tokens = prompt, .capacity = prompt, .live = true };
	request->last = prompt + 8 + hr__actor_random(actor, 300) + (hr__actor_chance(actor, 6) ? hr__actor_random(actor, 1500) : 0);
	request->stream = (uint32_t)hr__actor_random(actor, actor->streams);
	for (uint64_t layer = 0; layer < server->layers; layer++) {
		uint32_t hidden = hr__actor_alloc(actor, prompt * server->hidden * 2, request->stream);
		request->caches[layer] = hr__actor_alloc(actor, prompt * server->kv_bytes, request->stream);
		touch(actor, prompt * server->hidden * 6, request->stream);
		hr__actor_free(actor, hidden, request->stream);
	}
	server->live++;
}

/* Copies the caches to larger blocks, layer by layer. */
static void grow_request(hr__actor *actor, const struct server *server, struct serve_request *request)
{
	request->capacity = request->tokens + server->step;
	for (uint64_t layer = 0; layer < server->layers; layer++) {
		uint32_t larger = hr__actor_alloc(actor, request->capacity * server->kv_bytes, request->stream);
		hr__actor_free(actor, request->caches[layer], request->stream);
		request->caches[layer] = larger;
	}
}

static void end_request(hr__actor *actor, struct server *server, struct serve_request *request)
{
	/* One answer in four is freed on a random stream: the one that reads it. */
	uint32_t stream = hr__actor_chance(actor, 4) ? (uint32_t)hr__actor_random(actor, actor->streams) : request->stream;
	for (uint64_t layer = 0; layer < server->layers; layer++) hr__actor_free(actor, request->caches[layer], stream);
	request->live = false;
	server->live--;
}

static void decode(hr__actor *actor, struct server *server)
{
	uint64_t batch = server->live;
	uint32_t stream = side_stream(actor);
	for (uint64_t layer = 0; layer < server->layers && layer < 4; layer++) {
		uint32_t hidden = hr__actor_alloc(actor, batch * server->hidden * 2, stream);
		touch(actor, batch * server->hidden * 8, stream);
		hr__actor_free(actor, hidden, stream);
	}
	touch(actor, batch * server->vocabulary * 4, stream);
	for (uint32_t i = 0; i < REQUESTS_MOST && !actor->full; i++) {
		struct serve_request *request = &server->requests[i];
		if (!request->live) continue;
		if (++request->tokens > request->capacity) grow_request(actor, server, request);
		if (request->tokens >= request->last) end_request(actor, server, request);
	}
}

static void serve(hr__actor *actor)
{
	struct server server = { .layers = 8 + 8 * hr__actor_random(actor, 4),
		                     .hidden = UINT64_C(1024) << hr__actor_random(actor, 3),
		                     .vocabulary = 32000 + 1000 * hr__actor_random(actor, 96),
		                     .step = UINT64_C(1) << hr__actor_random(actor, 7),
		                     .most = 4 + (uint32_t)hr__actor_random(actor, REQUESTS_MOST - 4) };
	server.kv_bytes = server.hidden / (hr__actor_chance(actor, 2) ? 1 : 4) * 4;
	hr__actor_alloc(actor, server.vocabulary * server.hidden * 2, 0);
	for (uint64_t i = 0; i < server.layers * 2; i++) hr__actor_alloc(actor, server.hidden * server.hidden * (i % 2 ? 12 : 8), 0);
	while (!actor->full) {
		uint32_t slot = (uint32_t)hr__actor_random(actor, REQUESTS_MOST);
		bool arrives = server.live == 0 || (server.live < server.most && hr__actor_chance(actor, 12));
		if (arrives && !server.requests[slot].live) begin_request(actor, &server, &server.requests[slot]);
		if (server.live > 0) decode(actor, &server);
	}
}

/* ---- random ---- */

#define LIVE_MOST 4096u
#define LIVE_BYTES_MOST (UINT64_C(16) << 30)

/* 64 bytes to 512 MiB; doublings are equally likely up to 1 MiB, above that each is half as likely as the one before. */
static uint64_t random_size(hr__actor *actor)
{
	uint64_t log = 6 + hr__actor_random(actor, 15);
	while (log >= 20 && log < 28 && hr__actor_chance(actor, 2)) log++;
	uint64_t bytes = (UINT64_C(1) << log) + hr__actor_random(actor, UINT64_C(1) << log);
	return hr__actor_chance(actor, 3) ? UINT64_C(1) << log : bytes;
}

static void random_kind(hr__actor *actor)
{
	uint32_t blocks[LIVE_MOST], streams[LIVE_MOST], live = 0;
	uint64_t live_bytes = 0;
	while (!actor->full) {
		/* The target number of live blocks rises and falls slowly. */
		uint64_t phase = (actor->count / 1024) % 8, target = LIVE_MOST * (phase < 4 ? phase + 1 : 8 - phase) / 5;
		bool room = live < LIVE_MOST && live_bytes < LIVE_BYTES_MOST;
		if (live == 0 || (room && hr__actor_random(actor, 100) < (live < target ? 60u : 45u))) {
			streams[live] = (uint32_t)hr__actor_random(actor, actor->streams);
			uint64_t bytes = random_size(actor);
			blocks[live] = hr__actor_alloc(actor, bytes, streams[live]);
			if (blocks[live] != HR__NO_BLOCK) live_bytes += bytes;
			live += blocks[live] != HR__NO_BLOCK;
			continue;
		}
		/* Most freed blocks are young. */
		uint32_t young = live < 32 ? live : 32;
		uint32_t at = hr__actor_chance(actor, 4) ? (uint32_t)hr__actor_random(actor, live)
		                                         : live - 1 - (uint32_t)hr__actor_random(actor, young);
		bool elsewhere = hr__actor_chance(actor, 5);
		live_bytes -= actor->sizes[blocks[at]];
		hr__actor_free(actor, blocks[at], elsewhere ? (uint32_t)hr__actor_random(actor, actor->streams) : streams[at]);
		live--;
		memmove(&blocks[at], &blocks[at + 1], (live - at) * sizeof *blocks);
		memmove(&streams[at], &streams[at + 1], (live - at) * sizeof *streams);
	}
}

const hr__made_kind hr__made_kinds[] = { { "train", train }, { "serve", serve }, { "random", random_kind }, { NULL, NULL } };
