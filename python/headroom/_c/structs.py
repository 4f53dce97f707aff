"""The structs that the package uses. Made by tools/python-declarations.py from the headers."""

STRUCTS = {
    "hr_device_info": (
        "size_t struct_size; char name[32]; char full_name[64]; char backend[16]; char description[96]; uint32_t physical_index; uint32_t logical_count; "
        "uint64_t total_bytes; uint64_t free_bytes; uint64_t limit_bytes; uint64_t page_bytes; uint64_t reserved_bytes; uint64_t other_bytes"
    ),
    "hr_oom_options": (
        "size_t struct_size; bool report_allocations_on_oom; uint32_t allocation_log_buffer_size; double allocation_log_sampling_rate; hr_oom_log_address "
        "allocation_log_address; hr_oom_callback callback; void *user; bool allocation_log_allocations_only"
    ),
    "hr_allocator_options": (
        "size_t struct_size; const char *kind; const char *name; uint64_t limit_bytes; uint32_t granularity; bool allow_growth; bool thread_cache; bool "
        "stitch; hr_oom_options oom; unsigned char oom_reserved[128 - sizeof(hr_oom_options)]"
    ),
    "hr_request": (
        "size_t struct_size; size_t bytes; size_t alignment; hr_stream stream; hr_name op; hr_name scope; hr_name tag; hr_shape shape; hr_dtype dtype"
    ),
    "hr_custom_stats": (
        "size_t struct_size; uint64_t bytes_reserved; uint64_t bytes_limit; uint64_t largest_free"
    ),
    "hr_custom_allocator": (
        "size_t struct_size; hr_status (*open)(void *user, hr_device device, uint64_t limit_bytes, void **state); void (*close)(void *state); hr_status "
        "(*alloc)(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out); hr_status (*free)(void *state, void *address, size_t bytes, "
        "hr_stream stream); hr_status (*get_stats)(void *state, hr_custom_stats *stats)"
    ),
    "hr_memory_info": (
        "size_t struct_size; int64_t current; int64_t peak"
    ),
    "hr_holder": (
        "hr_name name; uint32_t count; int64_t bytes"
    ),
    "hr_profiler_steps": (
        "uint64_t first, last"
    ),
    "hr_profiler_options": (
        "size_t struct_size; hr_profiler_steps steps[HR_PROFILER_STEPS_MAX]; uint32_t step_count; bool compress; bool tensorboard; uint64_t max_bytes; "
        "uint32_t stack_depth; uint32_t reserved"
    ),
    "hr_session_options": (
        "size_t struct_size; const char *device; hr_allocator allocator"
    ),
    "hr_feed": (
        "hr_value placeholder, value"
    ),
    "hr_run_options": (
        "size_t struct_size; bool report_allocations_on_oom; uint32_t allocation_log_buffer_size; double allocation_log_sampling_rate; hr_run_trace "
        "trace; bool is_step; bool allocation_log_allocations_only"
    ),
    "hr_op_metadata": (
        "hr_name op, scope; uint64_t begin_ns, ns; uint32_t allocations; uint64_t allocated_bytes; uint64_t peak_bytes"
    ),
    "hr_run_metadata": (
        "size_t struct_size; uint64_t ns; uint64_t peak_bytes; hr_op_metadata *ops; size_t op_count, op_capacity; char *allocation_log"
    ),
    "hr_initializer": (
        "hr_initializer_kind kind; double a, b; uint64_t seed"
    ),
    "hr_optimizer": (
        "size_t struct_size; hr_optimizer_kind kind; const char *name; double learning_rate; double momentum; double beta1, beta2, epsilon"
    ),
    "hr_profile_options": (
        "size_t struct_size; const char *view; const char *device; const char *name_scope; int64_t step; uint64_t min_bytes, min_micros; const char "
        "*order_by; uint32_t max_depth, max_rows; const char *const *show_name_regexes, *const *hide_name_regexes; bool show_memory, show_time; bool "
        "show_input_output; uint32_t width; bool colour, utf8; void (*progress)(void *context, double part); void *progress_context; bool show_stacks; "
        "uint8_t reserved[7]"
    ),
}
