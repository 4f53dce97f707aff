// collectives.cpp - collectives of torch.distributed use tensors after their op has returned, and return a Work that says when they are done.
//
// The records of such an op, and those that it allocated, stay pinned until the Work is complete. Completion is polled when later ops begin and when
// memory is short: a callback of the Work would run too early with NCCL, whose futures are complete as soon as the kernel is queued.
//
// Memory that is short waits for collectives, but only for those that every process has to reach by itself, and for a limited time. A message (send, recv)
// may depend on what this thread does next, so it is never waited for.
#include "plugin.h"

#include <ATen/core/ivalue.h>

#include <chrono>
#include <mutex>
#include <thread>

#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)
#include <torch/csrc/distributed/c10d/Work.hpp>
#define HAVE_WORK 1
#endif

namespace headroom {

std::atomic<size_t> pending_collectives{0}; // also those that a thread has taken out to ask them

#ifdef HAVE_WORK

constexpr auto MAX_COLLECTIVE_WAIT = std::chrono::seconds(60);
constexpr auto COLLECTIVE_POLL_INTERVAL = std::chrono::milliseconds(1);

struct Pending {
	c10::intrusive_ptr<c10d::Work> work;
	bool message;                // send or recv
	std::vector<Record *> pins;  // one pin and one reference each
	std::vector<Record *> fresh; // with an allocation pin, and one reference each
};

struct PendingList {
	std::mutex lock; // never held while a Work is asked: a Work written in Python acquires the GIL
	std::vector<Pending> works;
	std::atomic<size_t> collectives{0}; // of [pending_collectives], those that are not messages
};

static PendingList &pending()
{
	static auto *list = new PendingList; // never destroyed: process groups end with the process
	return *list;
}

static void add_pending(Pending &&work)
{
	std::lock_guard<std::mutex> guard(pending().lock);
	pending().works.push_back(std::move(work));
}

// gloo marks some works (messages, reduce-scatters) as complete only in wait(), or never. They do nothing by themselves, so one that the program has
// dropped is over; the last reference is then this one. What gloo's threads still have to run is also referenced by their queue.
static bool is_done(const Pending &entry)
{
	return entry.work->isCompleted() || (front.type == c10::DeviceType::CPU && entry.work.use_count() == 1);
}

static void release(Pending &entry)
{
	entry.work.reset(); // first: what it aborts must not use the tensors later
	unpin_records(entry.pins.data(), entry.pins.size(), entry.fresh.data(), entry.fresh.size());
	if (!entry.message) pending().collectives--;
	pending_collectives--;
}

// The Work among the results of an op; NULL if there is none. Its type is known by name, because libtorch may be built without torch.distributed.
static c10::intrusive_ptr<c10d::Work> work_of(const std::vector<c10::IValue> &outputs)
{
	for (const c10::IValue &output : outputs) {
		if (!output.isObject() || output.toObjectRef().name() != "__torch__.torch.classes.c10d.Work") continue;
		auto holder = output.toObjectRef().getSlot(0).toCapsule();
		return c10::intrusive_ptr<c10d::Work>::reclaim_copy(static_cast<c10d::Work *>(holder.get()));
	}
	return {};
}

bool collective_begin(const std::vector<c10::IValue> &outputs, bool message, std::vector<Record *> &pins, std::vector<Record *> &fresh)
{
	if (pins.empty() && fresh.empty()) return false;
	auto work = work_of(outputs);
	if (!work) return false;
	pending_collectives++;
	if (!message) pending().collectives++;
	add_pending({std::move(work), message, std::move(pins), std::move(fresh)});
	pins.clear();
	fresh.clear();
	return true;
}

bool collectives_release()
{
	thread_local bool busy = false; // a Work written in Python may run ops when it is asked
	if (busy || pending_collectives.load(std::memory_order_relaxed) == 0) return false;
	struct Busy {
		Busy() { busy = true; }
		~Busy() { busy = false; }
	} in_use;
	EngineCall call; // a Work asks an event
	std::vector<Pending> taken;
	{
		std::lock_guard<std::mutex> guard(pending().lock);
		taken.swap(pending().works);
	}
	bool released = false;
	for (Pending &entry : taken) {
		if (is_done(entry)) {
			release(entry);
			released = true;
		} else {
			add_pending(std::move(entry));
		}
	}
	return released;
}

bool collectives_wait()
{
	auto until = std::chrono::steady_clock::now() + MAX_COLLECTIVE_WAIT;
	do {
		if (collectives_release()) return true;
		if (pending().collectives == 0) return false;
		std::this_thread::sleep_for(COLLECTIVE_POLL_INTERVAL);
	} while (std::chrono::steady_clock::now() < until);
	return false;
}

#else

bool collective_begin(const std::vector<c10::IValue> &, bool, std::vector<Record *> &, std::vector<Record *> &)
{
	return false;
}

bool collectives_release()
{
	return false;
}

bool collectives_wait()
{
	return false;
}

#endif

} // namespace headroom
