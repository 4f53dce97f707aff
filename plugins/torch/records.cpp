// records.cpp - records of storages: allocation, adoption, pins, addresses, frees. plugin.h has the life of a record and its invariants.
#include "plugin.h"

#include <c10/core/alignment.h>

#include <sched.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace headroom {

// Never destroyed: PyTorch frees storages while the process ends.
struct Table {
	std::mutex lock; // of the fields of all records; never held during a call that may wait
	std::unordered_map<void *, Record *> unadopted; // by address, which is unique while the block is pinned
	std::atomic<int64_t> pinned{0};
	std::vector<Record *> undestroyed; // freed by PyTorch, but the engine still needs their tensors
	std::atomic<size_t> undestroyed_count{0};
	std::atomic<int64_t> unpin_failures{0};
	std::string unpin_failure; // guarded by lock
};

static Table &table()
{
	static Table *instance = new Table;
	return *instance;
}

static void free_small(void *address);
static void free_record(void *context);

Record::~Record()
{
	if (c10::StorageImpl *last = storage) c10::raw::weak_intrusive_ptr::decref(last);
}

void record_release(Record *record)
{
	if (record->references.fetch_sub(1) == 1) delete record;
}

void records_lock()
{
	table().lock.lock();
}

void records_unlock()
{
	table().lock.unlock();
}

// ---- allocation ----

static c10::DataPtr allocate_block(size_t bytes, c10::Device device)
{
	hr_request request = hr_request_of(bytes);
	void *address = nullptr;
	request.alignment = c10::gAlignment < 256 ? 0 : c10::gAlignment; // 0: the granularity, 256
	request.stream = front.stream(index_of(device));
	request.scope = names().scope;
	request.tag = names().tag;
	hr_allocator of = front.allocator(index_of(device));
	hr_status status = hr_alloc(of, &request, &address);
	while (status == HR_OUT_OF_MEMORY && collectives_wait()) status = hr_alloc(of, &request, &address);
	if (status) {
		failed_allocator = of;
		throw_status(status);
	}
	return c10::DataPtr(address, address, free_small, device);
}

static void contents_moved(void *user, void *address);

static hr_status create_tensor(size_t bytes, Record *record, hr_tensor *tensor, void **address)
{
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	options.scope = names().scope;
	options.tag = names().tag;
	if (front.rests_on_copy) options.moved = contents_moved;
	options.user = record;
	hr_stream stream = front.stream(record->device);
	hr_status status = hr_tensor_create(failed_allocator = front.allocator(record->device), &options, tensor);
	if (status) return status;
	status = hr_tensor_pin(*tensor, HR_OVERWRITE, stream);
	if (status == HR_OK && (status = hr_tensor_get_address(*tensor, address))) hr_tensor_unpin(*tensor, stream);
	if (status) hr_tensor_destroy(*tensor);
	return status;
}

static c10::DataPtr allocate_tensor(size_t bytes, c10::Device device)
{
	hr_tensor tensor{};
	void *address = nullptr;
	auto owner = std::make_unique<Record>();
	owner->device = index_of(device);
	hr_status status = create_tensor(bytes, owner.get(), &tensor, &address);
	while (status == HR_OUT_OF_MEMORY && collectives_wait()) status = create_tensor(bytes, owner.get(), &tensor, &address);
	if (status) throw_status(status);
	Record *record = owner.release();
	record->tensor = tensor;
	record->address = address;
	record->bytes = bytes;
	record->pins = 1;
	record->allocation_pin = true;
	{
		std::lock_guard<std::mutex> guard(table().lock);
		table().unadopted[address] = record;
	}
	table().pinned++;
	op_allocated(record);
	return c10::DataPtr(address, address, free_block, device);
}

c10::DataPtr allocate(size_t bytes, c10::Device device)
{
	EngineCall call;
	op_check();
	if (bytes == 0) return c10::DataPtr(nullptr, nullptr, free_small, device);
	return lms_enabled && bytes >= movable_bytes ? allocate_tensor(bytes, device) : allocate_block(bytes, device);
}

// ---- frees ----

static void free_small(void *address)
{
	EngineCall call;
	// The stream of the request and those of record_stream are waited for, as PyTorch's programs expect; no other stream uses the block.
	if (address) hr_free(allocator, address, HR_STREAM_HOST);
}

struct Unpinned {
	hr_tensor tensor;
	c10::DeviceIndex device;
};

// Each tensor loses one pin. Those of a device in one call: the engine records what the stream has done so far once for each call.
static void engine_unpin(const Unpinned *unpinned, size_t count)
{
	if (!count) return;
	c10::SmallVector<hr_pin, 32> pins;
	c10::SmallVector<Unpinned, 4> others;
	for (size_t i = 0; i < count; i++) {
		if (unpinned[i].device == unpinned[0].device) pins.push_back({unpinned[i].tensor, HR_READ});
		else others.push_back(unpinned[i]);
	}
	engine_unpin(others.data(), others.size());
	// Other failures are of the device, which could not read the tensor for the check; the tensor is unpinned all the same.
	hr_status status = hr_tensor_unpin_all(pins.data(), pins.size(), front.stream(unpinned[0].device));
	if (status != HR_CORRUPT && status != HR_INVALID_ARGUMENT && status != HR_INVALID_HANDLE) return;
	std::string text = hr_last_message();
	std::lock_guard<std::mutex> guard(table().lock);
	if (table().unpin_failures++ == 0) table().unpin_failure = std::move(text);
}

static bool take_on_host(Record *record);

void give_up_pins(Record *record)
{
	int pins;
	{
		std::lock_guard<std::mutex> guard(table().lock);
		pins = record->pins;
		record->pins = 0;
		record->dead = true;
	}
	if (pins) table().pinned--;
	Unpinned unpinned{record->tensor, record->device};
	for (; pins > 0; pins--) engine_unpin(&unpinned, 1);
}

// Gives up a reference. A tensor from which dropped ones are computed is destroyed after they have been, and there may be no room for that now.
static void destroy_tensor(Record *record)
{
	hr_status status;
	// HR_IN_USE: another thread has ended an op on it, and is about to tell the engine.
	while ((status = hr_tensor_destroy(record->tensor)) == HR_IN_USE) sched_yield();
	if (status == HR_OK || status == HR_INVALID_HANDLE) return record_release(record);
	std::lock_guard<std::mutex> guard(table().lock);
	table().undestroyed.push_back(record);
	table().undestroyed_count = table().undestroyed.size();
}

// Tries again what failed.
static void destroy_others()
{
	std::vector<Record *> records;
	{
		std::lock_guard<std::mutex> guard(table().lock);
		records.swap(table().undestroyed);
		table().undestroyed_count = 0;
	}
	for (Record *record : records) destroy_tensor(record);
}

// PyTorch has freed the storage, so no op can use it any more, except work that is queued to the stream already.
static void destroy_record(Record *record)
{
	if (forked) return; // the tensor is the parent's
	EngineCall call;
	give_up_pins(record);
	if (take_on_host(record)) hr_tensor_host_end(record->tensor);
	destroy_tensor(record);
}

bool free_unadopted(void *address)
{
	Record *record = nullptr;
	{
		std::lock_guard<std::mutex> guard(table().lock);
		auto found = table().unadopted.find(address);
		if (found != table().unadopted.end()) {
			record = found->second;
			table().unadopted.erase(found);
		}
	}
	if (record) destroy_record(record);
	return record != nullptr;
}

void free_block(void *address)
{
	if (!free_unadopted(address)) free_small(address);
}

static void free_record(void *context)
{
	destroy_record(static_cast<Record *>(context));
}

// ---- adoption ----

static void name_record(Record *record, hr_name tag)
{
	hr_status ignored = hr_tensor_set_names(record->tensor, HR_NAME_NONE, tag);
	(void)ignored;
}

// Makes the storage point at [address]. With the lock held. Another thread may be destroying the storage, whose context it then takes without a lock: so
// only the address is written, the first field of a DataPtr (layout_is_known), which is of no use to a storage without a context.
static void set_address(Record *record, c10::StorageImpl *storage, void *address)
{
	c10::DataPtr &data = storage->_mutable_data_ptr_no_checks();
	if (data.get_context() == record) __atomic_store_n(reinterpret_cast<void **>(&data), address, __ATOMIC_RELAXED);
}

bool layout_is_known()
{
	int target = 0;
	c10::DataPtr data(&target, c10::Device(c10::DeviceType::CPU));
	void *first;
	memcpy(&first, &data, sizeof first);
	return first == &target;
}

static void set_address(Record *record, void *address)
{
	// The weak reference keeps the object; it may have been emptied.
	c10::StorageImpl *storage = record->storage.load(std::memory_order_relaxed);
	if (storage) set_address(record, storage, address);
}

static void set_storage(Record *record, c10::StorageImpl *storage)
{
	c10::StorageImpl *before = record->storage.load(std::memory_order_relaxed);
	if (before == storage) return;
	c10::raw::weak_intrusive_ptr::incref(storage);
	if (before) c10::raw::weak_intrusive_ptr::decref(before);
	record->storage.store(storage, std::memory_order_release);
}

// A storage that was not seen before, or whose DataPtr was another storage's.
static Record *adopt(c10::StorageImpl *storage)
{
	c10::DataPtr &data = storage->_mutable_data_ptr_no_checks();
	std::unique_lock<std::mutex> guard(table().lock);
	Record *record;
	if (data.get_deleter() == free_record) {
		record = static_cast<Record *>(data.get_context());
		set_storage(record, storage);
		return record;
	}
	auto found = table().unadopted.find(data.get_context());
	if (found == table().unadopted.end()) return nullptr;
	record = found->second;
	table().unadopted.erase(found);
	c10::Device device = data.device();
	void *address = data.get();
	data.release_context();
	storage->set_data_ptr_noswap(c10::DataPtr(address, record, free_block, device));
	set_storage(record, storage);
	record->adopted = true;
	// The deleter is last: a thread that finds it without the lock, in record_of, finds the rest.
	std::atomic_thread_fence(std::memory_order_release);
	(void)storage->_mutable_data_ptr_no_checks().compare_exchange_deleter(free_block, free_record);
	bool renamed = record->workspace;
	record->workspace = false;
	guard.unlock();
	if (renamed) name_record(record, names().tag);
	return record;
}

// Each op asks for each of its tensors, so most often without a lock.
Record *record_of(c10::StorageImpl *storage)
{
	c10::DataPtr &data = storage->_mutable_data_ptr_no_checks();
	c10::DeleterFnPtr deleter = data.get_deleter();
	if (deleter == free_record) {
		std::atomic_thread_fence(std::memory_order_acquire);
		auto *record = static_cast<Record *>(data.get_context());
		if (record->storage.load(std::memory_order_acquire) == storage) return record;
	} else if (deleter != free_block) {
		return nullptr;
	}
	return adopt(storage);
}

// ---- pins ----

// A child of a fork shares the memory of kept tensors with its parent.
static hr_status pin_in_child(Record *const *records, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!records[i]->kept) return HR_FORKED;
	for (size_t i = 0; i < count; i++) records[i]->references++;
	return HR_OK;
}

// Records of one device.
static hr_status engine_pin(Record *const *records, const hr_access *accesses, size_t count)
{
	c10::SmallVector<hr_pin, 32> pins; // not of the thread: the call may repeat ops, which pin too
	for (size_t i = 0; i < count; i++) pins.push_back({records[i]->tensor, accesses[i]});
	return hr_tensor_pin_all(pins.data(), count, front.stream(records[0]->device));
}

// Records of several devices, such as those of a copy between them.
static hr_status pin_by_device(Record *const *records, const hr_access *accesses, size_t count)
{
	c10::SmallVector<Record *, 8> pinned;
	for (c10::DeviceIndex device = 0; device < front.devices(); device++) {
		c10::SmallVector<Record *, 8> some;
		c10::SmallVector<hr_access, 8> their;
		for (size_t i = 0; i < count; i++) {
			if (records[i]->device != device) continue;
			some.push_back(records[i]);
			their.push_back(accesses[i]);
		}
		hr_status status = some.empty() ? HR_OK : pin_records(some.data(), their.data(), some.size());
		if (status) {
			unpin_records(pinned.data(), pinned.size());
			return status;
		}
		pinned.append(some.begin(), some.end());
	}
	return HR_OK;
}

hr_status pin_records(Record *const *records, const hr_access *accesses, size_t count)
{
	if (forked) return pin_in_child(records, count);
	for (size_t i = 1; i < count; i++)
		if (records[i]->device != records[0]->device) return pin_by_device(records, accesses, count);
	EngineCall call;
	hr_status status = engine_pin(records, accesses, count);
	while (status == HR_OUT_OF_MEMORY && collectives_wait()) status = engine_pin(records, accesses, count);
	if (status) {
		failed_allocator = front.allocator(records[0]->device);
		return status;
	}
	c10::SmallVector<void *, 32> addresses;
	for (size_t i = 0; i < count && !status; i++) {
		addresses.push_back(nullptr);
		status = hr_tensor_get_address(records[i]->tensor, &addresses.back());
	}
	if (status) { // a move on the device failed: give back everything
		for (size_t i = 0; i < count; i++) {
			Unpinned unpinned{records[i]->tensor, records[i]->device};
			engine_unpin(&unpinned, 1);
		}
		failed_allocator = front.allocator(records[0]->device);
		return status;
	}
	std::lock_guard<std::mutex> guard(table().lock);
	for (size_t i = 0; i < count; i++) {
		Record *record = records[i];
		if (record->pins++ == 0) table().pinned++;
		record->references.fetch_add(1, std::memory_order_relaxed);
		record->address = addresses[i];
		set_address(record, addresses[i]);
	}
	return HR_OK;
}

static void *guard_of(Record *record)
{
	if (!record->rest) record->rest = guard_address(record->bytes);
	return record->rest;
}

void *record_identity(Record *record)
{
	std::lock_guard<std::mutex> guard(table().lock);
	return guard_of(record);
}

bool begin_on_host(Record *record)
{
	void *address;
	if (hr_tensor_host_begin(record->tensor, &address)) return false;
	std::lock_guard<std::mutex> guard(table().lock);
	record->on_host = true;
	record->references++;
	set_address(record, address);
	return true;
}

// Whether the use of the host copy ends now: not if the storage was freed meanwhile.
static bool take_on_host(Record *record)
{
	std::lock_guard<std::mutex> guard(table().lock);
	bool was = record->on_host;
	record->on_host = false;
	return was;
}

void end_on_host(Record *record)
{
	if (take_on_host(record)) hr_tensor_host_end(record->tensor);
	record_release(record);
}

// Called by the engine, before it gives the memory of an unpinned tensor to another.
static void contents_moved(void *user, void *address)
{
	auto *record = static_cast<Record *>(user);
	std::lock_guard<std::mutex> guard(table().lock);
	if (record->pins == 0 && !record->dead) set_address(record, address ? address : guard_of(record));
}

// One pin less. The storage rests before the engine is told, so that it never points at memory that may be another's. With the lock held.
static bool forget_pin(Record *record)
{
	if (record->dead) return false;
	if (--record->pins == 0) {
		table().pinned--;
		if (!front.rests_on_copy) set_address(record, guard_of(record));
	}
	return true;
}

// Whether the record has its allocation pin and no longer needs it. With the lock held.
static bool take_allocation_pin(Record *record)
{
	if (record->dead || !record->allocation_pin) return false;
	record->listed = false;
	if (!record->adopted || !record->used) return false;
	record->allocation_pin = false;
	return true;
}

// The op has ended and no tensor has the memory of [record]: a library's workspace. With the lock held.
static bool becomes_workspace(Record *record)
{
	if (record->dead || record->adopted || record->workspace) return false;
	record->workspace = true;
	return true;
}

static void unpin_in_engine(Record *const *records, size_t count, Record *const *fresh, size_t fresh_count)
{
	static const hr_name workspace = hr_name_intern("workspace");
	c10::SmallVector<Unpinned, 32> unpinned;
	c10::SmallVector<Record *, 4> workspaces;
	{
		std::lock_guard<std::mutex> guard(table().lock);
		for (size_t i = 0; i < count; i++)
			if (forget_pin(records[i])) unpinned.push_back({records[i]->tensor, records[i]->device});
		for (size_t i = 0; i < fresh_count; i++) {
			if (take_allocation_pin(fresh[i]) && forget_pin(fresh[i])) unpinned.push_back({fresh[i]->tensor, fresh[i]->device});
			if (becomes_workspace(fresh[i])) workspaces.push_back(fresh[i]);
		}
	}
	for (Record *record : workspaces) name_record(record, workspace);
	engine_unpin(unpinned.data(), unpinned.size());
}

void unpin_records(Record *const *records, size_t count, Record *const *fresh, size_t fresh_count)
{
	EngineCall call;
	if (!forked && count + fresh_count > 0) unpin_in_engine(records, count, fresh, fresh_count);
	for (size_t i = 0; i < count; i++) record_release(records[i]);
	for (size_t i = 0; i < fresh_count; i++) record_release(fresh[i]);
	if (table().undestroyed_count.load(std::memory_order_relaxed) && !is_repeating()) destroy_others();
}

hr_status keep_record(Record *record)
{
	{
		std::lock_guard<std::mutex> guard(table().lock);
		if (record->kept) return HR_OK;
		record->kept = true;
	}
	hr_access access = HR_WRITE; // what is done with the address is not known
	hr_status status = pin_records(&record, &access, 1);
	if (status) record->kept = false;
	else record_release(record); // the pin ends with the storage, not with a frame
	return status;
}

hr_status keep_records(Record *const *records, size_t count)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < count && !status; i++) status = keep_record(records[i]);
	return status;
}

int64_t unpin_failures(std::string *text)
{
	std::lock_guard<std::mutex> guard(table().lock);
	*text = table().unpin_failure;
	return table().unpin_failures;
}

int64_t pinned_records()
{
	return table().pinned;
}

} // namespace headroom
