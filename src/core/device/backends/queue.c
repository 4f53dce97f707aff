/* queue.c - worker threads with queues.
 *
 * A bounded ring: command number n is in slot (n - 1) % CAPACITY until it is completed.
 *
 * Invariants, inside the monitor:
 *   1  completed <= submitted <= completed + CAPACITY
 *   2  the slots of commands completed + 1 to submitted hold these commands; only push writes slots
 *   3  both counters only grow, even across a stop, so tickets stay valid for the life of the queue */
#include "core/device/backends/queue.h"

#include <stdio.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/os/os.h"

#define CAPACITY 1024u
#define FOREVER UINT64_MAX

struct hr__queue {
	hr__queue_runner run; /* immutable, as are ran, device, stream and monitor */
	hr__queue_listener ran;
	void *device;
	uint32_t stream;
	hr__monitor *monitor; /* guards all fields below */
	hr__thread *thread;   /* NULL before the first command and after a stop */
	uint64_t submitted, completed;
	bool stopping;
	hr_status error; /* of the first command that failed since the last hr__queue_error */
	char message[400];
	hr__queue_command ring[CAPACITY];
};

hr_status hr__queue_open(hr__queue_runner run, hr__queue_listener ran, void *device, uint32_t stream, hr__queue **out)
{
	void *memory;
	int error = hr__os()->alloc(sizeof(hr__queue), &memory);
	if (error) return hr__os_fail(error, "a stream of the emulated device");
	hr__queue *queue = memory;
	queue->run = run;
	queue->ran = ran;
	queue->device = device;
	queue->stream = stream;
	error = hr__os()->monitor_create(&queue->monitor);
	if (error) {
		hr__os()->free(queue, sizeof *queue);
		return hr__os_fail(error, "a stream of the emulated device");
	}
	*out = queue;
	return HR_OK;
}

void hr__queue_stop(hr__queue *queue)
{
	hr__os()->monitor_enter(queue->monitor);
	hr__thread *thread = queue->thread;
	queue->stopping = true;
	hr__os()->monitor_wake_all(queue->monitor);
	hr__os()->monitor_leave(queue->monitor);
	if (thread) hr__os()->thread_join(thread);
	hr__os()->monitor_enter(queue->monitor);
	queue->thread = NULL;
	queue->stopping = false;
	queue->error = HR_OK;
	hr__os()->monitor_leave(queue->monitor);
}

void hr__queue_close(hr__queue *queue)
{
	hr__queue_stop(queue);
	hr__os()->monitor_destroy(queue->monitor);
	hr__os()->free(queue, sizeof *queue);
}

/* ---- the worker ---- */

static hr_status execute(const hr__queue *queue, const hr__queue_command *command)
{
	if (command->kind != HR__QUEUE_WAIT) return queue->run(queue->device, command);
	hr__queue_wait(command->as.wait.queue, command->as.wait.ticket);
	return HR_OK;
}

/* Runs the command outside the monitor and enters the monitor again before it returns. */
static void run_next(hr__queue *queue)
{
	hr__queue_command command = queue->ring[queue->completed % CAPACITY];
	uint64_t ticket = queue->completed + 1;
	hr__os()->monitor_leave(queue->monitor);
	hr_status status = execute(queue, &command);
	queue->ran(queue->device, queue->stream, ticket);
	hr__os()->monitor_enter(queue->monitor);
	if (status != HR_OK && queue->error == HR_OK) {
		queue->error = status;
		snprintf(queue->message, sizeof queue->message, "%s", hr_last_message());
	}
	queue->completed++;
	hr__os()->monitor_wake_all(queue->monitor);
}

static void work(void *argument)
{
	hr__queue *queue = argument;
	hr__os()->monitor_enter(queue->monitor);
	for (;;) {
		while (queue->completed == queue->submitted && !queue->stopping) hr__os()->monitor_wait(queue->monitor, FOREVER);
		if (queue->completed == queue->submitted) break;
		run_next(queue);
	}
	hr__os()->monitor_leave(queue->monitor);
}

/* ---- submitting commands and waiting for them ---- */

hr_status hr__queue_push(hr__queue *queue, const hr__queue_command *command)
{
	int error = 0;
	hr__os()->monitor_enter(queue->monitor);
	if (!queue->thread) error = hr__os()->thread_start(work, queue, "hr-stream", &queue->thread);
	if (!error) {
		while (queue->submitted - queue->completed == CAPACITY) hr__os()->monitor_wait(queue->monitor, FOREVER);
		queue->ring[queue->submitted++ % CAPACITY] = *command;
		HR_ASSERT(queue->submitted - queue->completed <= CAPACITY);
		hr__os()->monitor_wake_all(queue->monitor);
	}
	hr__os()->monitor_leave(queue->monitor);
	return error ? hr__os_fail(error, "starting a stream of the emulated device") : HR_OK;
}

uint64_t hr__queue_ticket(hr__queue *queue)
{
	hr__os()->monitor_enter(queue->monitor);
	uint64_t ticket = queue->submitted;
	hr__os()->monitor_leave(queue->monitor);
	return ticket;
}

bool hr__queue_is_past(hr__queue *queue, uint64_t ticket)
{
	hr__os()->monitor_enter(queue->monitor);
	bool past = queue->completed >= ticket;
	hr__os()->monitor_leave(queue->monitor);
	return past;
}

void hr__queue_wait(hr__queue *queue, uint64_t ticket)
{
	hr__os()->monitor_enter(queue->monitor);
	while (queue->completed < ticket) hr__os()->monitor_wait(queue->monitor, FOREVER);
	hr__os()->monitor_leave(queue->monitor);
}

hr_status hr__queue_error(hr__queue *queue)
{
	hr__os()->monitor_enter(queue->monitor);
	hr_status status = queue->error;
	if (status != HR_OK) hr__fail(status, "%s", queue->message);
	queue->error = HR_OK;
	hr__os()->monitor_leave(queue->monitor);
	return status;
}
