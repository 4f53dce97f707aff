"""The functions that the package calls, by library. Made by tools/python-declarations.py from the headers."""

HEADROOM = """
const char *hr_version(void);
const char *hr_status_name(hr_status status);
const char *hr_last_message(void);
hr_status hr_last_status(void);
hr_name hr_name_intern(const char *text);
const char *hr_name_text(hr_name name);
hr_status hr_device_find(const char *name, hr_device *out);
uint32_t hr_device_count(void);
hr_status hr_device_at(uint32_t index, hr_device *out);
uint32_t hr_device_physical_count(const char *type);
bool hr_device_is_emulated(hr_device device);
hr_status hr_device_get_info(hr_device device, hr_device_info *info);
hr_status hr_device_set_logical(const char *physical, const uint64_t *memory_limits, size_t count);
hr_status hr_cuda_check(void);
hr_status hr_environment_check(void);
hr_status hr_stream_import(hr_device device, uint64_t native, hr_stream *out);
void hr_oom_options_init_sized(hr_oom_options *options, size_t struct_size);
void hr_allocator_options_init_sized(hr_allocator_options *options, size_t struct_size);
hr_status hr_allocator_create(hr_device device, const hr_allocator_options *options, hr_allocator *out);
hr_status hr_allocator_get_default(const char *device_name, hr_allocator *out);
hr_status hr_allocator_destroy(hr_allocator allocator);
hr_status hr_alloc(hr_allocator allocator, const hr_request *request, void **out);
hr_status hr_free(hr_allocator allocator, void *address, hr_stream stream);
hr_status hr_allocator_trim(hr_allocator allocator, uint64_t *released);
hr_status hr_allocator_check(hr_allocator allocator);
void hr_stats_init_sized(hr_stats *stats, size_t struct_size);
hr_status hr_allocator_get_stats(hr_allocator allocator, hr_stats *stats);
hr_status hr_device_get_stats(hr_device device, hr_stats *stats);
hr_status hr_reset_memory_stats(const char *device_name);
hr_status hr_get_memory_info(const char *device_name, hr_memory_info *info);
int64_t hr_get_num_allocs(int gpu_id);
int64_t hr_get_bytes_in_use(int gpu_id);
int64_t hr_get_peak_bytes_in_use(int gpu_id);
int64_t hr_get_largest_alloc_size(int gpu_id);
int64_t hr_get_bytes_limit(int gpu_id);
int64_t hr_get_bytes_reserved(int gpu_id);
int64_t hr_get_peak_bytes_reserved(int gpu_id);
int64_t hr_get_bytes_reservable_limit(int gpu_id);
int64_t hr_get_bytes_inactive(int gpu_id);
int64_t hr_get_bytes_active(int gpu_id);
int64_t hr_get_peak_bytes_active(int gpu_id);
int64_t hr_get_bytes_reclaimed(int gpu_id);
int64_t hr_get_num_single_reclaims(int gpu_id);
int64_t hr_get_num_full_reclaims(int gpu_id);
int64_t hr_get_num_defragmentations(int gpu_id);
int64_t hr_get_bytes_defragged(int gpu_id);
int64_t hr_get_num_multi_reclaims(int gpu_id);
int64_t hr_get_total_bytes_allocated(int gpu_id);
size_t hr_stats_format(const hr_stats *stats, char *out, size_t capacity);
size_t hr_stats_format_json(const hr_stats *stats, char *out, size_t capacity);
hr_status hr_allocator_get_holders(hr_allocator allocator, hr_holder_kind kind, hr_holder *out, size_t capacity, size_t *count);
hr_status hr_oom_get_last(hr_oom_report *out);
size_t hr_oom_format_text(hr_oom_report report, char *out, size_t capacity);
size_t hr_oom_format_json(hr_oom_report report, char *out, size_t capacity);
size_t hr_oom_format_log(hr_oom_report report, char *out, size_t capacity);
hr_status hr_set_lms_enabled(bool enabled);
bool hr_get_lms_enabled(void);
hr_status hr_set_lms_defrag_enabled(bool enabled);
bool hr_get_lms_defrag_enabled(void);
hr_status hr_step_begin(hr_allocator allocator);
hr_status hr_step_end(hr_allocator allocator);
hr_status hr_lms_get_stats(hr_allocator allocator, hr_lms_stats *stats);
hr_status hr_lms_check(hr_allocator allocator);
hr_status hr_trace_start(const char *path);
hr_status hr_trace_stop(void);
hr_status hr_trace_mark(const char *text, uint64_t value);
"""

HEADROOM_RUNTIME = """
"""

HEADROOM_ANALYSIS = """
"""
