/* test_lms_fault.c - every call of the operating system and of the device fails, once, and permanently from some call on, while
 * tensors are created, written, evicted, restored, learned, spilled, verified, dropped and recomputed. Every recipe fails, too.
 *
 * Scenarios are run as in support_faults.h. The status of each call must be plausible; after it the allocator is consistent, and a
 * tensor has the contents last written to it, unless it was being overwritten. At the end, when no call fails any more, every tensor is
 * read back; after that nothing acquired from the system is left.
 *
 * At scale 1: all calls of the system, and all calls of the device that fail once; a third of the others. Everything at scale 3 and
 * above. */
#include <dirent.h>
#include <errno.h>

#include "core/device/device.h"
#include "core/lms/policy/learned.h"
#include "support_faults.h"
#include "support_stats.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define TENSORS 24u

/* ---- state of the scenario ---- */

enum contents { NONE, UNKNOWN, KNOWN };

static struct {
	hr_device device;
	hr_allocator allocator;
	hr_stream stream;
	bool open;
	struct {
		hr_tensor handle;
		size_t bytes;
		enum contents contents;
		unsigned char value;
	} tensors[TENSORS];
	uint32_t count;
	void *plain;
	char folder[64];
} here;

/* Called after every call: the allocator is consistent. Before the call that is made to fail nothing differs from the run without a failure, which
 * run_all() begins with; there every state is looked at. */
static void look(void)
{
	suspend();
	if (fault.nth && !fault.met) {
		resume();
		return;
	}
	hr_lms_stats lms = { .struct_size = sizeof lms };
	if (here.open && hr_lms_get_stats(here.allocator, &lms) == HR_OK) {
		hr_stats stats;
		int64_t tensors = 0;
		CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
		CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.allocator, &stats));
		check_identities(&stats);
		for (uint32_t i = 0; i < here.count; i++) {
			hr_tensor_info info = { .struct_size = sizeof info };
			if (!here.tensors[i].handle.id) continue;
			CHECK_STATUS(HR_OK, hr_tensor_get_info(here.tensors[i].handle, &info));
			CHECK_NE(info.state, HR_TENSOR_EVICTING);
			CHECK_NE(info.state, HR_TENSOR_RESTORING);
			tensors++;
		}
		CHECK_EQ(lms.num_tensors, tensors);
#define NOT_NEGATIVE(name, text) CHECK_LE(0, lms.name);
		HR_LMS_STATS_TABLE(NOT_NEGATIVE)
#undef NOT_NEGATIVE
		hr__lms *context;
		CHECK_STATUS(HR_OK, hr__lms_of(here.allocator, &context));
		CHECK_EQ(hr__load_relaxed(&context->movers), 0u);
		if (context->host) CHECK_STATUS(HR_OK, hr__host_check(context->host));
	}
	resume();
}

/* A call that hit a fault may return any status; without a fault only the expected one. */
static bool ok(hr_status status)
{
	if (status != HR_OK) {
		suspend();
		if (!fault.met) CHECK_STATUS(HR_OK, status);
		CHECK(hr_last_message()[0] != 0);
		if (status == HR_INVALID_ARGUMENT || status == HR_CORRUPT || status == HR_INVALID_HANDLE) CHECK_STATUS(HR_OK, status);
		resume();
	}
	look();
	return status == HR_OK;
}

static uint32_t create(size_t bytes)
{
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	hr_tensor tensor = { 0 };
	here.tensors[here.count].bytes = bytes;
	here.tensors[here.count].contents = NONE;
	hr_status status = hr_tensor_create(here.allocator, &options, &tensor);
	here.tensors[here.count].handle = tensor;
	here.count++;
	ok(status);
	return here.count - 1;
}

static void expect(uint32_t index)
{
	if (here.tensors[index].contents != KNOWN) return;
	static unsigned char found[2 * MIB];
	void *at;
	size_t bytes = here.tensors[index].bytes;
	CHECK_STATUS(HR_OK, hr_tensor_pin(here.tensors[index].handle, HR_READ, here.stream));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(here.tensors[index].handle, &at));
	CHECK_STATUS(HR_OK, hr_stream_copy(here.device, found, at, bytes, HR_COPY_TO_HOST, here.stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(here.device, here.stream));
	for (size_t i = 0; i < bytes; i += i + 64 < bytes ? 61 : 1)
		if (found[i] != here.tensors[index].value) CHECK_EQ(found[i], here.tensors[index].value);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(here.tensors[index].handle, here.stream));
}

/* Pins the tensors together; each is read, or gets new contents. */
static bool use(const uint32_t *indices, const hr_access *accesses, uint32_t count)
{
	hr_pin pins[8];
	for (uint32_t i = 0; i < count; i++) {
		pins[i] = (hr_pin){ here.tensors[indices[i]].handle, accesses[i] };
		if (!pins[i].tensor.id || (accesses[i] == HR_READ && here.tensors[indices[i]].contents == NONE)) return false;
	}
	hr_status status = hr_tensor_pin_all(pins, count, here.stream);
	if (status != HR_OK) { /* contents about to be overwritten may be lost; unwritten tensors stay unwritten */
		for (uint32_t i = 0; i < count; i++)
			if (accesses[i] == HR_OVERWRITE && here.tensors[indices[i]].contents == KNOWN)
				here.tensors[indices[i]].contents = UNKNOWN;
		suspend();
		for (uint32_t i = 0; i < count; i++) {
			hr_tensor_info info = { .struct_size = sizeof info };
			CHECK_STATUS(HR_OK, hr_tensor_get_info(pins[i].tensor, &info));
			CHECK_EQ(info.state == HR_TENSOR_NEW, here.tensors[indices[i]].contents == NONE);
		}
		resume();
		return ok(status);
	}
	look();
	for (uint32_t i = 0; i < count; i++) {
		void *at;
		CHECK_STATUS(HR_OK, hr_tensor_get_address(pins[i].tensor, &at));
		if (accesses[i] == HR_READ) continue;
		unsigned char value = (unsigned char)(here.tensors[indices[i]].value + 7 * indices[i] + 1);
		here.tensors[indices[i]].contents = UNKNOWN;
		if (!ok(hr_stream_fill(here.device, at, value, here.tensors[indices[i]].bytes, here.stream))) continue;
		here.tensors[indices[i]].value = value;
		here.tensors[indices[i]].contents = KNOWN;
	}
	status = hr_tensor_unpin_all(pins, count, here.stream);
	if (status != HR_OK) { /* verify could not read it; it is unpinned anyway */
		suspend();
		for (uint32_t i = 0; i < count; i++) CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_unpin(pins[i].tensor, here.stream));
		resume();
	}
	return ok(status);
}

static bool write_to(uint32_t index)
{
	hr_access access = HR_OVERWRITE;
	return use(&index, &access, 1);
}

static bool read_from(uint32_t index)
{
	hr_access access = HR_READ;
	return use(&index, &access, 1);
}

/* Computes what was last written to the output, whose number is the argument. */
static hr_status fill_again(void *user, const hr_recompute *call)
{
	uint32_t index = (uint32_t)(uintptr_t)user;
	void *at;
	if (fails_own()) return HR_IO;
	for (size_t i = 0; i < call->input_count; i++) {
		hr_status status = hr_tensor_get_address(call->inputs[i], &at);
		if (status) return status;
	}
	hr_status status = hr_tensor_get_address(call->outputs[0], &at);
	return status ? status : hr_stream_fill(here.device, at, here.tensors[index].value, here.tensors[index].bytes, call->stream);
}

/* Gives a tensor a recipe; [input] UINT32_MAX = without inputs. */
static bool give_recipe(uint32_t index, uint32_t input)
{
	hr_recipe made;
	if (!here.tensors[index].handle.id || here.tensors[index].contents != KNOWN) return false;
	if (input != UINT32_MAX && (!here.tensors[input].handle.id || here.tensors[input].contents != KNOWN)) return false;
	hr_recipe_init(&made);
	made.recompute = fill_again;
	made.user = (void *)(uintptr_t)index;
	made.inputs = input == UINT32_MAX ? NULL : &here.tensors[input].handle;
	made.input_count = input != UINT32_MAX;
	made.outputs = &here.tensors[index].handle;
	made.output_count = 1;
	made.cost_ns = 1;
	return ok(hr_tensor_set_recipe(&made));
}

static hr_status nothing_again(void *user, const hr_recompute *call)
{
	void *at;
	(void)user;
	for (size_t i = 0; i < call->input_count; i++) {
		hr_status status = hr_tensor_get_address(call->inputs[i], &at);
		if (status) return status;
	}
	return hr_tensor_get_address(call->outputs[0], &at);
}

/* An op in place that reads [input], and leaves all bytes as they are. */
static void change(uint32_t index, uint32_t input)
{
	if (!here.tensors[index].handle.id || !here.tensors[input].handle.id || here.tensors[index].contents != KNOWN || here.tensors[input].contents != KNOWN) return;
	hr_pin pins[] = { { here.tensors[input].handle, HR_READ }, { here.tensors[index].handle, HR_WRITE } };
	hr_status held = hr_tensor_hold_recipe(here.tensors[index].handle);
	if (held == HR_NOT_READY) CHECK(fault.met);
	else ok(held);
	if (ok(hr_tensor_pin_all(pins, 2, here.stream))) {
		ok(hr_tensor_unpin_all(pins, 2, here.stream));
		hr_recipe made;
		const uint64_t source = 5;
		hr_recipe_init(&made);
		made.recompute = nothing_again;
		made.inputs = &here.tensors[input].handle;
		made.outputs = &here.tensors[index].handle;
		made.input_count = made.output_count = made.source_count = 1;
		made.sources = &source;
		made.cost_ns = 1;
		hr_status status = held ? HR_OK : hr_tensor_extend_recipe(&made);
		if (status == HR_NOT_READY) CHECK(fault.met);
		else ok(status);
	} else {
		CHECK_STATUS(HR_OK, hr_tensor_unhold_recipe(here.tensors[index].handle));
	}
}

/* Drops a tensor. HR_NOT_READY: it has no recipe, because of an earlier fault. */
static void drop(uint32_t index)
{
	if (!here.tensors[index].handle.id) return;
	hr_status status = hr_tensor_drop(here.tensors[index].handle);
	if (status == HR_NOT_READY) CHECK(fault.met);
	else ok(status);
}

/* Destroys an input of dropped tensors, which are recomputed first. If that fails, the input still exists. */
static void destroy_input(uint32_t index)
{
	hr_tensor tensor = here.tensors[index].handle;
	if (!tensor.id) return;
	hr_status status = hr_tensor_destroy(tensor);
	if (status == HR_OK) here.tensors[index].handle.id = 0;
	ok(status);
}

static void destroy(uint32_t index)
{
	hr_tensor tensor = here.tensors[index].handle;
	if (!tensor.id) return;
	here.tensors[index].handle.id = 0;
	hr_status status = hr_tensor_destroy(tensor);
	suspend();
	CHECK_STATUS(HR_OK, status); /* destroying cannot fail */
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_destroy(tensor));
	resume();
	look();
}

static bool set_up(uint64_t limit, const char *policy, bool verify, bool spill, bool sim)
{
	hr_emulated_options emulated;
	hr_allocator_options options;
	hr_lms_options lms;
	suspend();
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&emulated));
	CHECK_STATUS(HR_OK, hr_lms_options_init(&lms));
	resume();
	emulated.memory_bytes = 16 * MIB;
	emulated.page_bytes = 64 * KIB;
	hr_simulated_options simulated;
	hr_simulated_options_init(&simulated);
	simulated.page_bytes = 64 * KIB;
	hr_allocator_options_init(&options);
	options.limit_bytes = limit;
	options.oom.report_allocations_on_oom = false;
	lms.enabled = true;
	lms.policy = policy;
	lms.verify = verify;
	lms.host_limit = spill ? 256 * KIB : 2 * MIB;
	lms.spill_dir = spill ? here.folder : NULL;
	lms.wait_ns = 0;
	if (!ok(hr_emulated_configure(&emulated)) || !ok(hr_simulated_configure(&simulated))) return false;
	if (!ok(hr_device_find(sim ? "SIM:0" : "GPU:0", &here.device))) return false;
	if (!ok(hr_stream_create(here.device, &here.stream))) return false;
	here.open = ok(hr_allocator_create(here.device, &options, &here.allocator));
	return here.open && ok(hr_lms_configure(here.allocator, &lms));
}

static void tear_down(void)
{
	for (uint32_t i = here.count; i-- > 0;) destroy(i); /* recipes depend on earlier tensors alone */
	hr_lms_stats lms = { .struct_size = sizeof lms };
	suspend();
	if (hr_lms_get_stats(here.allocator, &lms) == HR_OK) {
		CHECK_EQ(lms.num_tensors, 0);
		CHECK_EQ(lms.bytes_out_now, 0);
		CHECK_EQ(lms.bytes_inactive, 0);
		CHECK_EQ(lms.host_bytes, 0);
		CHECK_EQ(lms.spilled_bytes, 0);
	}
	resume();
	hr_status status = hr_allocator_destroy(here.allocator);
	if (status == HR_OK) here.open = false;
	ok(status);
}

/* After the faults: everything that was written can be read. */
static void check_contents(void)
{
	suspend();
	arm(0);
	uint64_t nth = fault.nth;
	fault.nth = 0;
	hr_lms_stats lms = { .struct_size = sizeof lms };
	if (here.open && hr_lms_get_stats(here.allocator, &lms) == HR_OK) {
		/* An asynchronous error may still be pending. */
		(void)!hr_stream_synchronize(here.device, here.stream);
		for (uint32_t i = 0; i < here.count; i++)
			if (here.tensors[i].handle.id) expect(i);
	}
	fault.nth = nth;
	resume();
}

/* ---- scenarios ---- */

/* Explicit calls: evict, restore, prefetch, overwrite, destroy in any state. */
static void by_hand(const char *policy, bool verify, bool spill)
{
	if (!set_up(2 * MIB, policy, verify, spill, false)) return;
	uint32_t a = create(160 * KIB), b = create(100 * KIB + 5), c = create(3000), d = create(40 * KIB);
	if (write_to(a)) ok(hr_tensor_evict(here.tensors[a].handle));
	write_to(b);
	write_to(c);
	if (here.tensors[b].handle.id) ok(hr_tensor_evict(here.tensors[b].handle));
	if (here.tensors[c].handle.id) ok(hr_tensor_evict(here.tensors[c].handle));
	read_from(a);
	if (here.tensors[b].handle.id) ok(hr_tensor_prefetch(here.tensors[b].handle));
	read_from(b);
	uint32_t both[] = { a, c, d };
	hr_access how[] = { HR_READ, HR_WRITE, HR_OVERWRITE };
	use(both, how, 3);
	if (here.tensors[a].handle.id) ok(hr_tensor_evict(here.tensors[a].handle)); /* without a copy */
	write_to(a);
	ok(hr_lms_reclaim_inactive(here.allocator, HR_NAME_NONE, NULL));
	ok(hr_lms_set_limit(here.allocator, 192 * KIB));
	read_from(c);
	read_from(a);
	ok(hr_lms_set_limit(here.allocator, 0));
	destroy(a);
	check_contents();
	tear_down();
}

static void lru_by_hand(void)
{
	by_hand("lru", false, false);
}

static void verified_by_hand(void)
{
	by_hand("lru", true, false);
}

static void spilled_and_verified(void)
{
	by_hand("learned", true, true);
}

/* Recipes: dropped tensors, chains, inputs that are written and destroyed, ghosts, too little memory. */
static void with_recipes(bool verify)
{
	if (!set_up(MIB, "lru", verify, false, false)) return;
	uint32_t a = create(160 * KIB), b = create(160 * KIB), c = create(100 * KIB), d = create(40 * KIB), e = create(160 * KIB);
	if (write_to(a) && write_to(b)) give_recipe(b, a);
	if (write_to(c)) give_recipe(c, b);
	if (write_to(d)) give_recipe(d, UINT32_MAX);
	drop(b);
	drop(c);
	drop(d);
	read_from(c); /* after b */
	read_from(d);
	drop(c);
	if (here.tensors[b].handle.id) ok(hr_tensor_evict(here.tensors[b].handle));
	read_from(c);
	drop(b);
	if (here.tensors[a].handle.id) ok(hr_tensor_evict(here.tensors[a].handle));
	write_to(a); /* b is recomputed first */
	check_contents();
	if (write_to(b)) give_recipe(b, d);
	if (write_to(c)) give_recipe(c, b);
	change(c, d);
	if (write_to(e)) give_recipe(e, c);
	change(e, c);
	change(e, d);
	drop(e);
	destroy_input(b); /* ghosts, if there was no fault */
	destroy_input(c);
	read_from(e);
	drop(e);
	void *block = NULL;
	hr_status status = hr_alloc_bytes(here.allocator, 900 * KIB, &block);
	if (ok(status)) ok(hr_free(here.allocator, block, HR_STREAM_DEFAULT));
	read_from(e);
	drop(e);
	destroy_input(d); /* the end of the ghosts */
	check_contents();
	tear_down();
}

static void recipes_unverified(void)
{
	with_recipes(false);
}

static void recipes_verified(void)
{
	with_recipes(true);
}

/* Evicts a single tensor for a request, several adjacent ones, all of them. */
static void for_room(void)
{
	if (!set_up(MIB, "lru", false, false, false)) return;
	uint32_t small[6], large = 0;
	for (uint32_t i = 0; i < 6; i++) {
		small[i] = create(160 * KIB);
		write_to(small[i]);
	}
	large = create(150 * KIB);
	write_to(large); /* single */
	large = create(400 * KIB);
	write_to(large); /* multi */
	check_contents();
	void *block = NULL;
	hr_status status = hr_alloc_bytes(here.allocator, 1000 * KIB, &block); /* full */
	if (ok(status)) ok(hr_free(here.allocator, block, HR_STREAM_DEFAULT));
	read_from(small[0]);
	read_from(large);
	check_contents();
	tear_down();
}

/* Tells the policy that the link is slow, so that plans drop what has a recipe. */
static void slow_down_link(void)
{
	hr__lms *context;
	suspend();
	if (hr__lms_of(here.allocator, &context) == HR_OK && context->learned)
		context->learned->link.out = context->learned->link.in = (hr__link_speed){ .bytes = 1000000, .ns = 1000000000 };
	resume();
}

/* Steps: two to learn, and some that follow the plan; with tensors that persist and others that are created in each step. [recipes]: those
 * are dropped, and computed again; every second one is computed from the one before, which is a ghost by then. */
static void learning(bool sim, bool spill, bool recipes)
{
	enum { WEIGHTS = 4, ACTS = 4, STEPS = 4 };
	if (!set_up(MIB, "learned", false, spill, sim)) return;
	if (recipes) slow_down_link();
	uint32_t weights[WEIGHTS];
	for (uint32_t i = 0; i < WEIGHTS; i++) {
		weights[i] = create(160 * KIB);
		write_to(weights[i]);
	}
	uint32_t base = here.count;
	for (uint32_t step = 0; step < STEPS; step++) {
		ok(hr_step_begin(here.allocator));
		here.count = base;
		uint32_t acts[ACTS], others[ACTS];
		for (uint32_t i = 0; i < ACTS; i++) {
			uint32_t act = create(128 * KIB), names[] = { weights[i], act };
			acts[i] = act;
			others[i] = UINT32_MAX;
			hr_access how[] = { HR_READ, HR_OVERWRITE };
			if (!use(names, how, 2) || !recipes) continue;
			give_recipe(act, weights[i]);
			uint32_t more = create(64 * KIB), from[] = { act, more };
			if (use(from, how, 2)) give_recipe(more, act);
			if (i % 2) destroy_input(act);
			acts[i] = i % 2 ? more : act;
			others[i] = i % 2 ? UINT32_MAX : more;
		}
		for (uint32_t i = ACTS; i-- > 0;) {
			uint32_t names[] = { acts[i], weights[i] };
			hr_access how[] = { HR_READ, HR_WRITE };
			use(names, how, 2);
			if (others[i] != UINT32_MAX && read_from(others[i])) destroy(others[i]);
			destroy_input(acts[i]);
		}
		for (uint32_t i = here.count; i-- > base;) destroy(i); /* what is left after a fault */
		ok(hr_step_end(here.allocator));
	}
	if (!sim) check_contents();
	tear_down();
}

static void learning_emulated(void)
{
	learning(false, false, false);
}

static void learning_spilled(void)
{
	learning(false, true, false);
}

static void learning_simulated(void)
{
	learning(true, false, false);
}

static void recomputing_emulated(void)
{
	learning(false, false, true);
}

static void recomputing_simulated(void)
{
	learning(true, false, true);
}

/* Shuts down while everything is still open. */
static void shut_down_in_the_middle(void)
{
	if (!set_up(MIB, "learned", false, false, false)) return;
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t tensor = create(300 * KIB);
		write_to(tensor);
	}
	hr_status status = hr_allocator_destroy_all(here.allocator);
	if (status == HR_OK) here.open = false;
	else ok(status);
}

static const fault_scenario scenarios[] = {
	{ "by hand", lru_by_hand },
	{ "by hand, verified", verified_by_hand },
	{ "by hand, with a file, verified", spilled_and_verified },
	{ "recipes", recipes_unverified },
	{ "recipes, verified", recipes_verified },
	{ "for room", for_room },
	{ "learning", learning_emulated },
	{ "learning, with a file", learning_spilled },
	{ "learning, simulated", learning_simulated },
	{ "recomputing as planned", recomputing_emulated },
	{ "recomputing as planned, simulated", recomputing_simulated },
	{ "the end in the middle", shut_down_in_the_middle },
};
#define SCENARIOS (sizeof scenarios / sizeof *scenarios)

/* The folder is empty, unless the call that removes the file was made to fail. */
static void empty_folder(void)
{
	DIR *folder = opendir(here.folder);
	CHECK(folder != NULL);
	for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
		char path[400];
		if (entry->d_name[0] == '.') continue;
		CHECK(!fault.backend && fault.met);
		snprintf(path, sizeof path, "%s/%s", here.folder, entry->d_name);
		CHECK_EQ(unlink(path), 0);
	}
	closedir(folder);
}

/* Runs the scenario once; true if a call was made to fail. */
static bool run_once(void (*run)(void), uint64_t nth)
{
	hr_fault_os_install();
	char folder[sizeof here.folder];
	memcpy(folder, here.folder, sizeof folder);
	memset(&here, 0, sizeof here);
	memcpy(here.folder, folder, sizeof folder);
	begin_faults(nth);
	run();
	here.open = false;
	hr_shutdown();
	suspend();
	empty_folder();
	if (!hr_fault_os_is_clean()) hr_test_fail(__FILE__, __LINE__, "something is left after shutdown");
	hr_fault_os_uninstall();
	return fault.met;
}

static uint64_t run_all(bool backend, bool forever, hr_status status, int error, double share)
{
	/* At scale 0.1 a tenth of the calls; each seed chooses others. */
	double scale = hr_test_scale() * share;
	uint64_t stride = scale < 1 ? (uint64_t)(1 / scale + 0.5) : 1;
	setenv("HEADROOM_CUDA", "0", 1);
	snprintf(here.folder, sizeof here.folder, "/tmp/hr-lms-fault-XXXXXX");
	CHECK(mkdtemp(here.folder) != NULL);
	fault.backend = backend;
	fault.forever = forever;
	fault.status = status;
	fault.error = error;
	for (size_t i = 0; i < SCENARIOS; i++) CHECK(!run_once(scenarios[i].run, 0));
	uint64_t total = run_scenarios(scenarios, SCENARIOS, run_once, 1 + hr_test_seed() % stride, stride);
	CHECK_EQ(rmdir(here.folder), 0);
	return total;
}

static void test_any_call_of_the_system_may_fail_once(void)
{
	CHECK_GT(run_all(false, false, HR_OK, ENOMEM, 1), 0);
}

static void test_any_call_of_the_system_may_fail_permanently(void)
{
	CHECK_GT(run_all(false, true, HR_OK, ENOSPC, 1), 0);
}

static void test_any_call_of_the_device_may_fail_once(void)
{
	CHECK_GT(run_all(true, false, HR_DEVICE_ERROR, 0, 1), 0);
}

static void test_any_call_of_the_device_may_fail_permanently(void)
{
	CHECK_GT(run_all(true, true, HR_DEVICE_ERROR, 0, 0.34), 0);
}

static void test_the_device_may_be_full_at_any_call(void)
{
	CHECK_GT(run_all(true, false, HR_OUT_OF_MEMORY, 0, 0.34), 0);
}

static void test_any_recipe_may_fail(void)
{
	fault.own = true;
	uint64_t least = hr_test_scale() < 1 ? 0 : 10;
	CHECK_GT(run_all(true, false, HR_OK, 0, 1), least);
	CHECK_GT(run_all(true, true, HR_OK, 0, 1), least);
}

TEST_MAIN(T_WITHIN(test_any_recipe_may_fail, 120), T_WITHIN(test_any_call_of_the_system_may_fail_once, 120), T_WITHIN(test_any_call_of_the_system_may_fail_permanently, 120),
          T_WITHIN(test_any_call_of_the_device_may_fail_once, 300), T_WITHIN(test_any_call_of_the_device_may_fail_permanently, 120),
          T_WITHIN(test_the_device_may_be_full_at_any_call, 120))
