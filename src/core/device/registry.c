/* registry.c - the devices that exist.
 *
 *   sources    backends with their config: cuda, emulated, cpu, simulated, then those that the program registers. The emulated
 *              devices are a substitute: they are of type "GPU" only when no other source has a GPU. If CUDA has one, their type is
 *              "EMU"; if only a backend of the program has one, there are none
 *   types      "GPU", "CPU", "SIM", then "EMU" and those that only registered backends have; devices are listed type by type
 *   physical   counted when a device of the type is first looked up, so a program that uses no GPU does not start a driver; opened
 *              when first used
 *   logical    created, all of a type at once, when the first handle to one of them is returned: from then on the type is in use, and
 *              settings that would change its devices are refused
 *   pinned     host memory for the copies of a physical device, created on request; in no type and no list (pinned.c)
 *
 * A handle is (generation << 8 | record + 1). hr__devices_shutdown starts the next generation, so old handles match no record and
 * are recognised as stale until the generation wraps after 2^24 shutdowns.
 *
 * One lock guards everything, except what handles lead to: a logical device's handle is stored with release when its record is
 * complete, and its ready flag when the device can be used, so that hr__device_of acquires no lock once the device is open. After a
 * fork the lock may be held by a thread that does not exist in the child, so hr__forked is checked before the lock is acquired. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/device/internal.h"

#define MAX_TYPES (HR__MAX_SOURCES + 1u) /* the emulated source has two types */
#define GPU_TYPE 0u                      /* index of "GPU" in types */
#define EMULATED_TYPE "EMU"

typedef struct device_source {
	hr_backend table;
	void *config;
	uint32_t type;  /* index into types */
	bool stands_in; /* a substitute: used only where no other source has devices of the type */
	bool counted;
	uint32_t count; /* physical devices */
	hr__physical *devices[HR__MAX_LISTED];
} device_source;

typedef struct device_type {
	char text[16];
	hr__atomic_u8 in_use; /* its logical devices exist; stored with release */
	uint32_t count;       /* logical devices */
	hr__device *devices[HR__MAX_LISTED];
} device_type;

static struct {
	bool started; /* the built-in sources were added */
	bool cuda_is_required; /* emulated devices are no substitute for GPUs */
	uint32_t source_count, type_count, logical_count;
	uint32_t own_sources; /* number of built-in sources */
	device_source sources[HR__MAX_SOURCES];
	device_type types[MAX_TYPES];
	hr_cuda_options cuda;
	hr_emulated_options emulated;
	hr_simulated_options simulated;
} registry;

static hr__physical physicals[HR__MAX_LISTED]; /* a record without a table is free */
static hr__device logicals[HR__MAX_DEVICES];   /* the second half: the pinned memory of each entry of physicals */
static hr__lock lock = HR__LOCK_INIT(HR__RANK_REGISTRY);
static uint32_t generation = 1;
static hr__atomic_u8 anything; /* there is state that the child of a fork must discard */
bool hr__forked;

/* ---- starting ---- */

static void after_fork(void)
{
	if (hr__load_relaxed(&anything)) hr__forked = true;
}

/* Once per process: a registered fork handler stays. */
static hr_status watch_forks(void)
{
	static bool watching;
	if (watching) return HR_OK;
	int error = hr__os_at_fork(after_fork);
	if (error) return hr__os_fail(error, "registering a fork handler");
	watching = true;
	return HR_OK;
}

/* The index of a type; adds the type when it is new. */
static uint32_t type_named(const char *text)
{
	char upper[sizeof registry.types->text] = "";
	for (size_t i = 0; i + 1 < sizeof upper && text[i]; i++)
		upper[i] = text[i] >= 'a' && text[i] <= 'z' ? (char)(text[i] - 32) : text[i];
	uint32_t at = 0;
	while (at < registry.type_count && strcmp(registry.types[at].text, upper) != 0) at++;
	if (at == registry.type_count) {
		HR_ASSERT(registry.type_count < MAX_TYPES);
		memcpy(registry.types[registry.type_count++].text, upper, sizeof upper);
	}
	return at;
}

static void add_source(const hr_backend *table, void *config, bool stands_in)
{
	HR_ASSERT(registry.source_count < HR__MAX_SOURCES);
	device_source *added = &registry.sources[registry.source_count++];
	memset(added, 0, sizeof *added);
	added->table = *table;
	added->config = config;
	added->type = type_named(table->type);
	added->stands_in = stands_in;
}

static hr_status start(void)
{
	if (registry.started) return HR_OK;
	hr_status status = watch_forks();
	if (status != HR_OK) return status;
	hr__options_devices_from_environment(&registry.cuda, &registry.emulated);
	registry.cuda_is_required = hr__cuda_is_required();
	hr_simulated_options_init(&registry.simulated);
	add_source(&hr__backend_cuda, &registry.cuda, false); /* cuda and emulated first: their type must be GPU_TYPE */
	add_source(&hr__backend_emulated, &registry.emulated, true);
	add_source(&hr__backend_cpu, NULL, false);
	add_source(&hr__backend_simulated, &registry.simulated, false);
	registry.own_sources = registry.source_count;
	registry.started = true;
	hr__store_relaxed(&anything, 1);
	return HR_OK;
}

/* ---- counting physical devices ---- */

static void drop_physical(device_source *from)
{
	for (uint32_t i = 0; i < from->count; i++) {
		if (hr__load_relaxed(&from->devices[i]->open)) hr__physical_close(from->devices[i]);
		from->devices[i]->table = NULL;
	}
	from->count = 0;
	from->counted = false;
}

static hr_status add_physical(device_source *from)
{
	hr__physical *physical = physicals;
	while (physical < physicals + HR__MAX_LISTED && physical->table) physical++;
	if (physical == physicals + HR__MAX_LISTED) return hr__fail(HR_TOO_MANY, "there are more than %u devices", HR__MAX_LISTED);
	memset(physical, 0, sizeof *physical);
	physical->table = &from->table;
	physical->config = from->config;
	physical->index = from->count;
	from->devices[from->count++] = physical;
	return HR_OK;
}

static hr_status count_source(device_source *from)
{
	uint32_t count = 0;
	if (from->counted) return HR_OK;
	hr_status status = hr__call_count(&from->table, from->config, &count);
	if (status != HR_OK) return hr__fail_in(status, "counting %s devices", from->table.name);
	while (from->count < count && status == HR_OK) status = add_physical(from);
	if (status != HR_OK) drop_physical(from);
	else from->counted = true;
	return status;
}

static bool others_have(const device_source *stand_in)
{
	for (uint32_t i = 0; i < registry.source_count; i++) {
		const device_source *other = &registry.sources[i];
		if (!other->stands_in && other->type == stand_in->type && other->count > 0) return true;
	}
	return false;
}

static device_source *source_named(const char *name)
{
	for (uint32_t i = 0; i < registry.source_count; i++) {
		if (strcmp(registry.sources[i].table.name, name) == 0) return &registry.sources[i];
	}
	return NULL;
}

/* Counts the devices of a type's sources and numbers them; the substitute source comes last, if it is used at all. */
static hr_status count_type_alone(uint32_t type)
{
	uint32_t number = 0;
	for (int stands_in = 0; stands_in < 2; stands_in++) {
		for (uint32_t i = 0; i < registry.source_count; i++) {
			device_source *from = &registry.sources[i];
			if (from->type != type || from->stands_in != (stands_in != 0)) continue;
			if (stands_in && others_have(from)) {
				drop_physical(from);
				continue;
			}
			hr_status status = count_source(from);
			if (status != HR_OK) return status;
			for (uint32_t d = 0; d < from->count; d++, number++)
				if (from->devices[d]->number != number) from->devices[d]->number = number; /* no needless write to shared data */
		}
	}
	return HR_OK;
}

/* Counts a type. The type of emulated devices depends on whether CUDA has any, so these are counted first. */
static hr_status count_type(uint32_t type)
{
	device_source *cuda = source_named("cuda"), *emulated = source_named("emulated");
	if (type == cuda->type || type == emulated->type) {
		hr_status status = count_source(cuda);
		if (status != HR_OK) return status;
		emulated->type = cuda->count > 0 || registry.cuda_is_required ? type_named(EMULATED_TYPE) : cuda->type;
	}
	return count_type_alone(type);
}

/* Includes types that are added by the counting itself. */
static hr_status count_all(void)
{
	hr_status status = HR_OK;
	for (uint32_t type = 0; type < registry.type_count && status == HR_OK; type++) status = count_type(type);
	return status;
}

/* The physical device of a type with that number, or NULL. */
static hr__physical *physical_number(uint32_t type, uint32_t number)
{
	for (uint32_t i = 0; i < registry.source_count; i++) {
		device_source *from = &registry.sources[i];
		for (uint32_t d = 0; from->type == type && d < from->count; d++) {
			if (from->devices[d]->number == number) return from->devices[d];
		}
	}
	return NULL;
}

/* Logical devices that a type has, or will have once it is in use. */
static uint32_t logical_count(uint32_t type)
{
	uint32_t count = 0;
	hr__physical *physical;
	for (uint32_t number = 0; (physical = physical_number(type, number)); number++) {
		count += physical->split_count ? physical->split_count : 1;
	}
	return count;
}

/* Begins a call that needs the lists: acquires the lock, which leave() releases. On failure the lock is not held. */
static hr_status enter(void)
{
	if (hr__forked)
		return hr__fail(HR_FORKED, "this process is a fork, and the devices belong to its parent; call hr_shutdown() to start over");
	hr__lock_take(&lock);
	hr_status status = start();
	if (status != HR_OK) hr__lock_release(&lock);
	return status;
}

static void leave(void)
{
	hr__lock_release(&lock);
}

/* ---- creating logical devices ---- */

static void make_logical(device_type *type, hr__physical *physical, uint64_t limit)
{
	HR_ASSERT(registry.logical_count < HR__MAX_LISTED && physical->part_count < HR__MAX_PARTS);
	uint32_t record = registry.logical_count++;
	hr__device *device = &logicals[record];
	memset(device, 0, sizeof *device);
	device->index = record;
	device->number = type->count;
	device->limit_setting = limit;
	device->physical = physical;
	snprintf(device->name, sizeof device->name, "%s:%u", type->text, device->number);
	physical->parts[physical->part_count++] = device;
	type->devices[type->count++] = device;
	hr__store_release(&device->handle, generation << 8 | (record + 1));
}

/* Creates all logical devices of a type, which is in use from then on. */
static hr_status use_type(uint32_t at)
{
	device_type *type = &registry.types[at];
	hr__physical *physical;
	if (hr__load_relaxed(&type->in_use)) return HR_OK;
	if (logical_count(at) > HR__MAX_LISTED - registry.logical_count) {
		return hr__fail(HR_TOO_MANY, "there would be more than %u logical devices", HR__MAX_LISTED);
	}
	for (uint32_t number = 0; (physical = physical_number(at, number)); number++) {
		if (!physical->split_count) make_logical(type, physical, 0);
		for (uint32_t i = 0; i < physical->split_count; i++) make_logical(type, physical, physical->split[i]);
	}
	hr__store_release(&type->in_use, 1);
	return HR_OK;
}

/* ---- opening ---- */

static hr_status bad_caps(const hr__physical *physical, const char *why)
{
	return hr__fail(HR_DEVICE_ERROR, "the %s backend opened device %u, but %s", physical->table->name, physical->index, why);
}

static hr_status check_caps(const hr__physical *physical)
{
	const hr_backend_caps *caps = &physical->caps;
	if (caps->total_bytes == 0) return bad_caps(physical, "caps.total_bytes is 0");
	if (caps->page_bytes == 0) return physical->table->plain_alloc ? HR_OK : bad_caps(physical, "caps.page_bytes is 0");
	if (!physical->table->map) return bad_caps(physical, "caps.page_bytes is set without entries for pages");
	if (!hr__is_power_of_two(caps->page_bytes)) return bad_caps(physical, "caps.page_bytes is not a power of two");
	if (!hr__is_power_of_two(caps->map_alignment) || caps->map_alignment < caps->page_bytes) {
		return bad_caps(physical, "caps.map_alignment is not a power of two, or below caps.page_bytes");
	}
	return HR_OK;
}

hr_status hr__physical_open(hr__physical *physical)
{
	if (hr__load_relaxed(&physical->open)) return HR_OK;
	memset(&physical->caps, 0, sizeof physical->caps);
	hr_status status = hr__call_open(physical);
	if (status != HR_OK) return hr__fail_in(status, "opening %s device %u", physical->table->name, physical->index);
	physical->caps.description[sizeof physical->caps.description - 1] = 0;
	status = check_caps(physical);
	if (status == HR_OK) status = hr__streams_open(physical);
	if (status != HR_OK) {
		physical->table->close(physical->native);
		return status;
	}
	hr__store_release(&physical->open, 1);
	return HR_OK;
}

void hr__physical_close(hr__physical *physical)
{
	hr__streams_close(physical); /* waits for work that still uses the pages */
	for (uint32_t i = 0; i < physical->part_count; i++) {
		if (hr__load_relaxed(&physical->parts[i]->ready)) hr__page_pool_destroy(physical->parts[i]);
	}
	if (physical->pinned) hr__page_pool_destroy(physical->pinned);
	physical->table->close(physical->native);
	hr__store_release(&physical->open, 0);
}

/* Whether the device is a GPU, real or emulated; HEADROOM_LIMIT applies only to these. */
static bool is_accelerator(const hr__device *device)
{
	return strncmp(device->name, "GPU:", 4) == 0 || strncmp(device->name, EMULATED_TYPE ":", 4) == 0;
}

/* Opens the physical device of a logical device and sets up its pool. */
static hr_status make_ready(hr__device *device)
{
	HR_ASSERT(hr__lock_is_mine(&lock));
	if (hr__load_relaxed(&device->ready)) return HR_OK;
	hr_status status = hr__physical_open(device->physical);
	if (status != HR_OK) return status;
	const hr_backend_caps *caps = &device->physical->caps;
	uint64_t limit = device->limit_setting ? device->limit_setting : caps->total_bytes;
	uint64_t cap = is_accelerator(device) ? hr__options_limit_from_environment(caps->page_bytes) : UINT64_MAX;
	device->uncapped = limit;
	if (limit > cap) limit = cap;
	hr__store_relaxed(&device->limit, limit);
	hr__page_pool_init(&device->pool, caps->page_bytes, limit);
	hr__store_release(&device->ready, 1);
	return HR_OK;
}

hr__device *hr__device_of(hr_device handle, hr_status *why)
{
	uint32_t record = (handle.id & 0xff) - 1;
	hr__device *device = record < HR__MAX_DEVICES ? &logicals[record] : NULL;
	if (HR_UNLIKELY(hr__forked)) {
		*why = hr__fail(HR_FORKED, "this process is a fork, and the devices belong to its parent; call hr_shutdown() to start over");
		return NULL;
	}
	if (HR_UNLIKELY(!device || hr__load_acquire(&device->handle) != handle.id)) {
		*why = hr__fail(HR_INVALID_HANDLE, "device handle 0x%x is invalid or from before hr_shutdown; get one with hr_device_find", handle.id);
		return NULL;
	}
	if (HR_LIKELY(hr__load_acquire(&device->ready))) return device;
	hr__lock_take(&lock);
	*why = make_ready(device);
	hr__lock_release(&lock);
	return *why == HR_OK ? device : NULL;
}

bool hr__device_is_open(hr_device handle)
{
	uint32_t record = (handle.id & 0xff) - 1;
	const hr__device *device = record < HR__MAX_DEVICES ? &logicals[record] : NULL;
	return device && !hr__forked && hr__load_acquire(&device->handle) == handle.id && hr__load_acquire(&device->ready);
}

/* Fills in the record of the pinned memory of [physical] and publishes it when it is complete. */
static hr_status make_pinned(hr__physical *physical, uint64_t limit)
{
	uint32_t record = HR__MAX_LISTED + (uint32_t)(physical - physicals);
	hr__device *pinned = &logicals[record];
	hr_status status = hr__pinned_open(pinned, physical, limit);
	if (status != HR_OK) return status;
	pinned->index = record;
	physical->pinned = pinned;
	hr__store_release(&pinned->ready, 1);
	hr__store_release(&pinned->handle, generation << 8 | (record + 1));
	return HR_OK;
}

hr_status hr__device_pinned(hr__device *of, uint64_t limit, hr__device **out)
{
	hr_status status = enter();
	if (status != HR_OK) return status;
	hr__physical *physical = of->physical;
	HR_ASSERT(hr__load_relaxed(&of->ready));
	status = physical->pinned ? hr__pinned_set_limit(physical->pinned, limit) : make_pinned(physical, limit);
	if (status == HR_OK) *out = physical->pinned;
	leave();
	return status;
}

/* ---- shutdown ---- */

/* Resets the registry to its state before first use. All existing handles become stale. */
static void reset(void)
{
	for (uint32_t i = 0; i < HR__MAX_DEVICES; i++) {
		hr__store_release(&logicals[i].handle, 0);
		hr__store_relaxed(&logicals[i].ready, 0);
	}
	for (uint32_t i = 0; i < HR__MAX_LISTED; i++) physicals[i].table = NULL;
	memset(&registry, 0, sizeof registry);
	generation = generation == 0xffffff ? 1 : generation + 1;
	hr__store_relaxed(&anything, 0);
}

void hr__devices_shutdown(void)
{
	hr__lock_take(&lock);
	for (uint32_t i = 0; i < registry.source_count; i++) drop_physical(&registry.sources[i]);
	reset();
	hr__lock_release(&lock);
}

void hr__devices_forget(void)
{
	/* Keep the discarded state reachable, so that a leak checker in the child does not report it. */
	static hr__physical parents_physicals[HR__MAX_LISTED];
	static hr__device parents_logicals[HR__MAX_DEVICES];
	memcpy(parents_physicals, physicals, sizeof physicals);
	memcpy(parents_logicals, logicals, sizeof logicals);
	hr__lock_init(&lock, HR__RANK_REGISTRY); /* a thread of the parent may have held it */
	reset();
	hr__forked = false;
}

/* ---- finding ---- */

/* Writes the names of all devices; a long list ends with "...". */
static const char *list_devices(char *out, size_t capacity)
{
	size_t used = 0;
	out[0] = 0;
	for (uint32_t type = 0; type < registry.type_count; type++) {
		uint32_t count = logical_count(type);
		for (uint32_t number = 0; number < count; number++) {
			if (used + 32 > capacity) {
				snprintf(out + used, capacity - used, ", ...");
				return out;
			}
			used += (size_t)snprintf(out + used, capacity - used, "%s%s:%u", used ? ", " : "", registry.types[type].text, number);
		}
	}
	return used ? out : "none";
}

static bool has_cuda(void)
{
	return source_named("cuda")->count > 0;
}

/* For a GPU the message includes what is wrong with CUDA. */
static hr_status no_such_device(const char *name, bool gpu)
{
	HR_ASSERT(hr__lock_is_mine(&lock));
	char quoted[HR__QUOTE_CAPACITY], list[200];
	hr_status status = count_all();
	if (status != HR_OK) return status;
	bool refused = gpu && registry.cuda_is_required && !has_cuda();
	bool tell = refused || (gpu && hr__cuda_is_broken());
	return hr__fail(HR_NO_SUCH_DEVICE, "there is no device %s; the devices are %s%s%s%s", hr__device_quote(name, quoted), list_devices(list, sizeof list),
	                refused ? "; HEADROOM_REQUIRE_CUDA forbids emulated devices in place of GPUs" : "", tell ? ". CUDA: " : "",
	                tell ? hr__cuda_why() : "");
}

/* The type named [text], with its devices counted; registry.type_count when there is none. "EMU" finds emulated devices even while
 * they substitute for GPUs. */
static hr_status find_type(const char *text, uint32_t *out)
{
	HR_ASSERT(hr__lock_is_mine(&lock));
	bool emulated = strcmp(text, EMULATED_TYPE) == 0;
	hr_status status = emulated ? count_type(GPU_TYPE) : HR_OK;
	uint32_t at = 0;
	while (at < registry.type_count && strcmp(registry.types[at].text, text) != 0) at++;
	if (status == HR_OK && at < registry.type_count) status = count_type(at);
	const device_source *stand_in = source_named("emulated");
	bool elsewhere = at < registry.type_count && logical_count(at) > 0;
	if (emulated && !elsewhere && stand_in->type == GPU_TYPE && stand_in->count > 0) at = GPU_TYPE;
	if (status == HR_OK) *out = at;
	return status;
}

/* Finds the type and number that [name] refers to; [count_of](type) is the number of devices of a type. */
static hr_status resolve(const char *name, uint32_t (*count_of)(uint32_t type), uint32_t *type, uint32_t *number)
{
	HR_ASSERT(hr__lock_is_mine(&lock));
	hr__device_spec spec;
	char quoted[HR__QUOTE_CAPACITY];
	hr_status status = hr__device_spec_parse(name, &spec);
	if (status != HR_OK) return status;
	uint32_t at;
	status = find_type(spec.type, &at);
	if (status != HR_OK) return status;
	uint32_t count = at < registry.type_count && !spec.elsewhere ? count_of(at) : 0;
	if (spec.any_number && count > 1) {
		return hr__fail(HR_AMBIGUOUS_DEVICE, "%s fits %s:0 and %s:1%s; add the number", hr__device_quote(name, quoted), spec.type,
		                spec.type, count > 2 ? " and more" : "");
	}
	if (spec.number >= count) return no_such_device(name, at == GPU_TYPE);
	*type = at;
	*number = spec.number;
	return HR_OK;
}

static hr_status find(const char *name, hr__device **out)
{
	HR_ASSERT(hr__lock_is_mine(&lock));
	uint32_t type, number;
	hr_status status = resolve(name ? name : "GPU:0", logical_count, &type, &number);
	if (status == HR_OK) status = use_type(type);
	if (status == HR_OK) *out = registry.types[type].devices[number];
	return status;
}

hr_status hr__device_named(const char *name, hr__device **out)
{
	hr__device *device;
	hr_status status = enter();
	if (status != HR_OK) return status;
	status = find(name, &device);
	if (status == HR_OK) status = make_ready(device);
	if (status == HR_OK) *out = device;
	leave();
	return status;
}

hr_status hr__device_gpu(int gpu_id, hr__device **out)
{
	const device_type *gpus = &registry.types[GPU_TYPE];
	if (HR_LIKELY(!hr__forked && hr__load_acquire(&gpus->in_use) && gpu_id >= 0 && (uint32_t)gpu_id < gpus->count)) {
		hr__device *device = gpus->devices[gpu_id];
		if (hr__load_acquire(&device->ready)) {
			*out = device;
			return HR_OK;
		}
	}
	char name[24];
	snprintf(name, sizeof name, "GPU:%d", gpu_id);
	if (gpu_id >= 0) return hr__device_named(name, out);
	hr_status status = enter();
	if (status != HR_OK) return status;
	status = no_such_device(name, true);
	leave();
	return status;
}

HR_API hr_status hr_device_find(const char *name, hr_device *out)
{
	hr__device *device;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_device_find: out is NULL");
	hr_status status = enter();
	if (status != HR_OK) return status;
	status = find(name, &device);
	if (status == HR_OK) *out = hr__device_handle(device);
	leave();
	return status;
}

HR_API uint32_t hr_device_count(void)
{
	uint32_t count = 0;
	if (enter() != HR_OK) return 0;
	bool counted = count_all() == HR_OK;
	for (uint32_t type = 0; counted && type < registry.type_count; type++) count += logical_count(type);
	leave();
	return count;
}

HR_API hr_status hr_device_at(uint32_t index, hr_device *out)
{
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_device_at: out is NULL");
	hr_status status = enter();
	if (status != HR_OK) return status;
	status = count_all();
	uint32_t type = 0, number = index;
	for (; status == HR_OK && type < registry.type_count && number >= logical_count(type); type++) number -= logical_count(type);
	if (status == HR_OK && type == registry.type_count) {
		status = hr__fail(HR_NO_SUCH_DEVICE, "there is no device number %u; there are %u", index, index - number);
	} else if (status == HR_OK) {
		status = use_type(type);
		if (status == HR_OK) *out = hr__device_handle(registry.types[type].devices[number]);
	}
	leave();
	return status;
}

HR_API hr_status hr_cuda_check(void)
{
	hr_status status = enter();
	if (status != HR_OK) return status;
	status = count_type(GPU_TYPE);
	if (status == HR_OK && !has_cuda()) status = hr__fail(HR_NO_SUCH_DEVICE, "%s", hr__cuda_why());
	leave();
	return status;
}

static uint32_t physical_count(uint32_t type)
{
	uint32_t count = 0;
	while (physical_number(type, count)) count++;
	return count;
}

HR_API uint32_t hr_device_physical_count(const char *type)
{
	uint32_t count = 0;
	if (!type) {
		hr__fail(HR_INVALID_ARGUMENT, "hr_device_physical_count: type is NULL; give one such as \"GPU\"");
		return 0;
	}
	if (enter() != HR_OK) return 0;
	bool counted = count_all() == HR_OK;
	for (uint32_t at = 0; counted && at < registry.type_count; at++)
		if (strcmp(registry.types[at].text, type) == 0) count = physical_count(at);
	leave();
	return count;
}

/* ---- settings ---- */

static hr_status check_limits(const hr__physical *physical, const char *name, const uint64_t *limits, size_t count)
{
	uint64_t page = physical->caps.page_bytes, total = physical->caps.total_bytes, sum = 0;
	for (size_t i = 0; i < count; i++) {
		hr__sizes size = HR__SIZES(limits[i], limits[i] < page ? page : total);
		if (limits[i] == 0) return hr__fail(HR_BAD_LIMIT, "%s: memory limit %zu is 0; it must be at least one page", name, i);
		if (limits[i] < page) {
			return hr__fail(HR_BAD_LIMIT, "%s: memory limit %zu is %s, below one page of %s", name, i, size.text[0], size.text[1]);
		}
		if (limits[i] > total) return hr__fail(HR_BAD_LIMIT, "%s: memory limit %zu is %s, above its %s", name, i, size.text[0], size.text[1]);
		if (!hr__add(sum, limits[i], &sum) || sum > total) {
			return hr__fail(HR_BAD_LIMIT, "%s: the memory limits together exceed its %s", name, size.text[1]);
		}
	}
	return HR_OK;
}

static hr_status split(const char *name, const uint64_t *limits, size_t count)
{
	HR_ASSERT(hr__lock_is_mine(&lock));
	uint32_t type, number;
	hr_status status = resolve(name, physical_count, &type, &number);
	if (status != HR_OK) return status;
	char canonical[32];
	snprintf(canonical, sizeof canonical, "%s:%u", registry.types[type].text, number);
	if (strcmp(registry.types[type].text, "CPU") == 0) return hr__fail(HR_UNSUPPORTED, "%s cannot be split", canonical);
	if (hr__load_relaxed(&registry.types[type].in_use)) {
		return hr__fail(HR_IN_USE, "%s is in use; hr_device_set_logical must come before the first %s is found or used", canonical,
		                registry.types[type].text);
	}
	hr__physical *physical = physical_number(type, number);
	status = hr__physical_open(physical);
	if (status == HR_OK) status = check_limits(physical, canonical, limits, count);
	if (status != HR_OK) return status;
	physical->split_count = (uint32_t)count;
	memcpy(physical->split, limits, count * sizeof *limits);
	return HR_OK;
}

HR_API hr_status hr_device_set_logical(const char *physical, const uint64_t *memory_limits, size_t count)
{
	if (count == 0 || count > HR__MAX_PARTS) {
		return hr__fail(HR_INVALID_ARGUMENT, "a device can be split into 1 to %u logical devices, not %zu", HR__MAX_PARTS, count);
	}
	if (!memory_limits) return hr__fail(HR_INVALID_ARGUMENT, "hr_device_set_logical: memory_limits is NULL");
	hr_status status = enter();
	if (status != HR_OK) return status;
	status = split(physical ? physical : "GPU:0", memory_limits, count);
	leave();
	return status;
}

/* Whether the devices of a type can still be changed. */
static hr_status check_unused(uint32_t type)
{
	hr__physical *physical;
	const char *text = registry.types[type].text;
	if (hr__load_relaxed(&registry.types[type].in_use)) {
		return hr__fail(HR_IN_USE, "%s:0 is in use; its settings must come before a %s is first found or used", text, text);
	}
	for (uint32_t number = 0; (physical = physical_number(type, number)); number++) {
		if (physical->split_count) {
			return hr__fail(HR_IN_USE, "%s:%u is split already; its settings must come before hr_device_set_logical", text,
			                number);
		}
	}
	return HR_OK;
}

/* Copies *[from] to *[to], the config of [backend], and drops its devices so that they are counted and opened again. */
static hr_status configure(const char *backend, void *to, const void *from, size_t bytes)
{
	hr_status status = enter();
	if (status != HR_OK) return status;
	device_source *configured = source_named(backend);
	status = check_unused(configured->type);
	/* With other cards, the type of the emulated devices may change. */
	if (status == HR_OK && to == &registry.cuda) status = check_unused(source_named("emulated")->type);
	if (status == HR_OK) {
		drop_physical(configured);
		memcpy(to, from, bytes);
	}
	leave();
	return status;
}

hr_status hr__registry_set_cuda(const hr_cuda_options *options)
{
	return configure("cuda", &registry.cuda, options, sizeof *options);
}

hr_status hr__registry_set_emulated(const hr_emulated_options *options)
{
	return configure("emulated", &registry.emulated, options, sizeof *options);
}

hr_status hr__registry_set_simulated(const hr_simulated_options *options)
{
	return configure("simulated", &registry.simulated, options, sizeof *options);
}

static hr_status register_backend(const hr_backend *table, void *config)
{
	HR_ASSERT(hr__lock_is_mine(&lock));
	for (uint32_t i = 0; i < registry.type_count; i++) {
		hr_status status = check_unused(i);
		if (status != HR_OK) return hr__fail_in(status, "backend %s must be registered before the first device is used", table->name);
	}
	if (source_named(table->name)) return hr__fail(HR_ALREADY_EXISTS, "a backend named %s is registered already", table->name);
	if (registry.source_count - registry.own_sources == HR__MAX_USER_BACKENDS) {
		return hr__fail(HR_TOO_MANY, "%u backends are registered already", HR__MAX_USER_BACKENDS);
	}
	add_source(table, config, false);
	return HR_OK;
}

HR_API hr_status hr_backend_register(const hr_backend *backend, void *config)
{
	hr_backend complete;
	hr_status status = hr__backend_check(backend, &complete);
	if (status == HR_OK) status = enter();
	if (status != HR_OK) return status;
	status = register_backend(&complete, config);
	leave();
	return status;
}
