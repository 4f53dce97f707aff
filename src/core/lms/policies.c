/* policies.c - eviction policies that programs have registered, by name. */
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/lms/context.h"

#define POLICIES_MAX 8u

static struct {
	hr__lock lock;
	struct {
		char name[HR__LMS_POLICY_NAME];
		hr_lms_policy table;
		void *user;
	} policies[POLICIES_MAX];
	uint32_t count;
} registry = { .lock = HR__LOCK_INIT(HR__RANK_LMS) };

hr_status hr_lms_policy_register(const char *name, const hr_lms_policy *policy, void *user)
{
	if (!name || !name[0] || strlen(name) >= sizeof registry.policies[0].name)
		return hr__fail(HR_INVALID_ARGUMENT, "the name of a policy must have 1 to 31 bytes");
	hr_lms_policy whole = { .struct_size = sizeof whole };
	hr_status status = hr__struct_in(&hr__struct_lms_policy, "hr_lms_policy_register", &whole, policy);
	if (status) return status;
	if (!whole.score) return hr__fail(HR_INVALID_ARGUMENT, "policy \"%s\": score is missing", name);
	hr__lock_take(&registry.lock);
	bool taken = !strcmp(name, "lru") || !strcmp(name, "learned");
	for (uint32_t i = 0; i < registry.count; i++) taken |= !strcmp(name, registry.policies[i].name);
	if (taken) {
		status = hr__fail(HR_ALREADY_EXISTS, "a policy named \"%s\" exists already", name);
	} else if (registry.count == POLICIES_MAX) {
		status = hr__fail(HR_TOO_MANY, "%u policies are registered already", POLICIES_MAX);
	} else {
		snprintf(registry.policies[registry.count].name, sizeof registry.policies[0].name, "%s", name);
		registry.policies[registry.count].table = whole;
		registry.policies[registry.count++].user = user;
	}
	hr__lock_release(&registry.lock);
	return status;
}

bool hr__lms_policy_find(const char *name, hr_lms_policy *table, void **user)
{
	bool found = false;
	hr__lock_take(&registry.lock);
	for (uint32_t i = 0; i < registry.count && !found; i++) {
		found = !strcmp(name, registry.policies[i].name);
		if (!found) continue;
		*table = registry.policies[i].table;
		*user = registry.policies[i].user;
	}
	hr__lock_release(&registry.lock);
	return found;
}

void hr__lms_policy_reset(void)
{
	registry.count = 0;
}

void hr__lms_policy_forget(void)
{
	hr__lock_init(&registry.lock, HR__RANK_LMS);
	hr__lms_policy_reset();
}
