// front_cpu.cpp - CPU tensors on Headroom's emulated device, whose memory is host memory that CPU kernels can use. Tests run the whole plug-in
// this way without a GPU; programs can train past their limit into a file.
#include "plugin.h"

#include <c10/core/CPUAllocator.h>

#include <sys/sysinfo.h>

namespace headroom {

static c10::DeviceIndex one_device()
{
	return 1;
}

static hr_allocator the_allocator(c10::DeviceIndex)
{
	return allocator;
}

static hr_stream cpu_stream(c10::DeviceIndex)
{
	return HR_STREAM_HOST;
}

static hr_device emulated;

// Kernels run on the calling thread, not on a stream.
static hr_status wait_for_stream(hr_stream stream)
{
	return hr_stream_synchronize(emulated, stream);
}

static c10::Allocator *previous_allocator;

struct CpuAllocator final : c10::Allocator {
	c10::DataPtr allocate(size_t bytes) override
	{
		if (forked) return previous_allocator->allocate(bytes);
		return headroom::allocate(bytes, c10::Device(c10::DeviceType::CPU));
	}
	c10::DeleterFnPtr raw_deleter() const override
	{
		return free_block;
	}
	void copy_data(void *to, const void *from, size_t bytes) const override
	{
		default_copy_data(to, from, bytes);
	}
};

// The device has the host's memory; the limit is the allocator's. So an installation that failed can be repeated with another limit, although a
// device in use cannot be configured again.
static hr_status configure_device()
{
	static bool configured;
	hr_emulated_options options;
	struct sysinfo host;
	if (configured) return HR_OK;
	hr_status status = hr_emulated_options_init(&options);
	if (status) return status;
	sysinfo(&host);
	options.memory_bytes = uint64_t(host.totalram) * host.mem_unit / options.page_bytes * options.page_bytes;
	status = hr_emulated_configure(&options);
	configured = status == HR_OK;
	return status;
}

} // namespace headroom

extern "C" HR_API hr_status headroom_torch_install_cpu(const headroom::Settings *settings)
{
	using namespace headroom;
	static CpuAllocator *instance = new CpuAllocator;
	hr_device device;
	hr_status status = configure_device();
	if (status) return status;
	if ((status = hr_device_find("EMU:0", &device)) && (status = hr_device_find("GPU:0", &device))) return status;
	if (!guard_open()) return HR_NO_HOST_MEMORY;
	emulated = device;
	FrontTable table{};
	table.type = c10::DeviceType::CPU;
	table.devices = one_device;
	table.allocator = the_allocator;
	table.stream = cpu_stream;
	table.rests_on_copy = settings->rests_on_copy != 0;
	table.wait_for_inputs = wait_for_stream;
	status = open_allocator(device, *settings, table);
	if (status) return status;
	previous_allocator = c10::GetCPUAllocator();
	handle_forks();
	c10::SetCPUAllocator(instance, 100);
	return HR_OK;
}
