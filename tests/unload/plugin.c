/* plugin.c - a module that contains the static library, like a plugin of another program. */
#include "headroom.h"

__attribute__((visibility("default"))) hr_status plugin_use(void);
__attribute__((visibility("default"))) hr_status plugin_end(void);

hr_status plugin_use(void)
{
	hr_allocator allocator;
	void *block;
	hr_status status = hr_allocator_get_default("CPU:0", &allocator);
	if (!status) status = hr_alloc_bytes(allocator, 1000, &block);
	return status ? status : hr_free(allocator, block, HR_STREAM_HOST);
}

hr_status plugin_end(void)
{
	return hr_shutdown();
}
