/* options.c - options of a context: defaults, the environment (HEADROOM_LMS), and the switches of the process. */
#include <string.h>

#include "core/base/text/settings.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"
#include "core/lms/context.h"

#define VARIABLE HR__LMS_VARIABLE
#define DEFAULT_WAIT_NS UINT64_C(1000000000)

static struct {
	hr__lock lock;
	char source[HR__LMS_VARIABLE_MAX];   /* the variable when it was last read */
	char settings[HR__LMS_VARIABLE_MAX]; /* [source], split into keys and values */
} environment = { .lock = HR__LOCK_INIT(HR__RANK_LMS) };

/* What hr_set_lms_enabled and hr_set_lms_defrag_enabled were given; -1 = not called. */
static hr__atomic_i64 enabled_setting = -1, defrag_setting = -1;

/* ---- the environment ---- */

static hr_status read_flag(const char *key, const char *text, bool *out)
{
	if ((text[0] == '0' || text[0] == '1') && !text[1]) {
		*out = text[0] == '1';
		return HR_OK;
	}
	return hr__fail(HR_INVALID_ARGUMENT, "%s: %s must be 0 or 1", VARIABLE, key);
}

static hr_status read_size(const char *key, const char *text, uint64_t *out)
{
	if (!hr__parse_size(text, out)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "%s: %s is not a size; examples: 1073741824, 1GiB, 1.5G, 512MB", VARIABLE, key);
}

static hr_status read_setting(const char *key, const char *value, hr_lms_options *options)
{
	if (!strcmp(key, "enabled")) return read_flag(key, value, &options->enabled);
	if (!strcmp(key, "defrag")) return read_flag(key, value, &options->defrag);
	if (!strcmp(key, "verify")) return read_flag(key, value, &options->verify);
	if (!strcmp(key, "recompute")) return read_flag(key, value, &options->recompute);
	if (!strcmp(key, "limit")) return read_size(key, value, &options->limit);
	if (!strcmp(key, "host_limit")) return read_size(key, value, &options->host_limit);
	if (!strcmp(key, "spill_limit")) return read_size(key, value, &options->spill_limit);
	if (!strcmp(key, "defrag_budget")) return read_size(key, value, &options->defrag_budget);
	if (!strcmp(key, "spill_dir")) options->spill_dir = value;
	else if (!strcmp(key, "policy")) options->policy = value;
	else if (!strcmp(key, "step_csv")) options->step_csv = value;
	else
		return hr__fail(HR_INVALID_ARGUMENT,
		                "%s: unknown setting; the settings are enabled, policy, limit, host_limit, spill_dir, spill_limit, defrag, "
		                "defrag_budget, verify, recompute, step_csv",
		                VARIABLE);
	return HR_OK;
}

/* Splits the text in a static buffer, so that options can point into it. */
static hr_status read_environment(hr_lms_options *options)
{
	HR_ASSERT(hr__lock_is_mine(&environment.lock));
	const char *text = hr__os()->environment(VARIABLE);
	if (!text || !text[0]) return HR_OK;
	if (!text[1]) return read_flag("the value", text, &options->enabled);
	if (strlen(text) >= sizeof environment.settings)
		return hr__fail(HR_INVALID_ARGUMENT, "%s is longer than %u bytes", VARIABLE, HR__LMS_VARIABLE_MAX - 1);
	options->enabled = true;
	/* Options read earlier point into the buffer, so it is written only if the text has changed. */
	size_t length = strlen(text);
	if (strcmp(environment.source, text) != 0) {
		memcpy(environment.source, text, length + 1);
		memcpy(environment.settings, text, length + 1);
		for (size_t i = 0; i < length; i++)
			if (text[i] == ',' || text[i] == '=') environment.settings[i] = 0;
	}
	for (size_t at = 0; at < length;) {
		const char *key = environment.settings + at;
		at += strlen(key) + 1;
		if (at > length || text[at - 1] != '=')
			return hr__fail(HR_INVALID_ARGUMENT, "%s: expected settings such as limit=8GiB", VARIABLE);
		const char *value = environment.settings + at;
		at += strlen(value) + 1;
		hr_status status = read_setting(key, value, options);
		if (status) return status;
	}
	return HR_OK;
}

/* ---- defaults ---- */

static void plain_defaults(hr_lms_options *options)
{
	*options = (hr_lms_options){ .struct_size = sizeof *options,
		                         .enabled = hr__load_relaxed(&enabled_setting) == 1,
		                         .defrag = hr__load_relaxed(&defrag_setting) == 1,
		                         .policy = "learned",
		                         .wait_ns = DEFAULT_WAIT_NS,
		                         .recompute = true };
}

static hr_status initial_options(hr_lms_options *options)
{
	plain_defaults(options);
	hr__lock_take(&environment.lock);
	hr_status status = read_environment(options);
	hr__lock_release(&environment.lock);
	if (status) plain_defaults(options);
	/* The program's settings override the environment. */
	if (hr__load_relaxed(&enabled_setting) >= 0) options->enabled = hr__load_relaxed(&enabled_setting) == 1;
	if (hr__load_relaxed(&defrag_setting) >= 0) options->defrag = hr__load_relaxed(&defrag_setting) == 1;
	return status;
}

/* Options from the environment, or plain defaults if it is invalid. */
void hr__lms_options_first_use(hr_lms_options *options)
{
	hr__last before = hr__last_get();
	if (initial_options(options)) hr__setting_ignored(VARIABLE, &before);
}

/* Options of any version of the headers; NULL: those of the environment. */
hr_status hr__lms_options_read(const hr_lms_options *given, hr_lms_options *out)
{
	hr__last before = hr__last_get();
	if (!given) {
		hr__lms_options_first_use(out);
		return HR_OK;
	}
	if (given->struct_size >= sizeof *given) plain_defaults(out);
	else if (initial_options(out)) hr__last_set(&before);
	return hr__struct_in(&hr__struct_lms_options, "hr_lms_configure", out, given);
}

hr_status hr_lms_options_init_sized(hr_lms_options *options, size_t struct_size)
{
	hr_lms_options initial;
	if (!options) return hr__fail(HR_INVALID_ARGUMENT, "hr_lms_options_init: options is NULL");
	hr_status status = initial_options(&initial);
	hr__struct_init(&hr__struct_lms_options, options, struct_size, &initial);
	return status;
}

/* Whether the text of an option comes from the environment; options filled in by hr_lms_options_init point there. */
bool hr__lms_options_from_environment(const char *text)
{
	return text >= environment.settings && text < environment.settings + sizeof environment.settings;
}

/* ---- switches ---- */

hr_status hr_set_lms_enabled(bool enabled)
{
	hr__lms_register_hooks();
	hr__store_relaxed(&enabled_setting, enabled);
	return HR_OK;
}

hr_status hr_set_lms_defrag_enabled(bool enabled)
{
	hr__lms_register_hooks();
	hr__store_relaxed(&defrag_setting, enabled);
	return HR_OK;
}

bool hr_get_lms_enabled(void)
{
	hr_lms_options options;
	hr__lms_options_first_use(&options);
	return options.enabled;
}

bool hr_get_lms_defrag_enabled(void)
{
	hr_lms_options options;
	hr__lms_options_first_use(&options);
	return options.defrag;
}

void hr__lms_options_reset(void)
{
	hr__store_relaxed(&enabled_setting, -1);
	hr__store_relaxed(&defrag_setting, -1);
}

void hr__lms_options_forget(void)
{
	hr__lock_init(&environment.lock, HR__RANK_LMS);
	hr__lms_options_reset();
}
