/* queue.h - a stream of the emulated device: a worker thread that runs commands in order.
 *
 * Commands are numbered from 1. A point in the stream is the number of the last command submitted so far, its ticket; the point is
 * past when that many commands are completed. So recording an event is reading a number, and an event needs no entry in the queue.
 * A listener is called after each command has run, just before the command counts as completed; event times come from it.
 *
 * A command may wait for a ticket of another queue. A ticket always refers to commands submitted earlier, so waits cannot form a
 * cycle, even when a full queue makes submitting block. */
#ifndef HR_DEVICE_QUEUE_H
#define HR_DEVICE_QUEUE_H

#include "headroom_backend.h"

typedef struct hr__queue hr__queue;

typedef enum hr__queue_command_kind {
	HR__QUEUE_COPY = 1,
	HR__QUEUE_FILL,
	HR__QUEUE_CALL,
	HR__QUEUE_COMPUTE,
	HR__QUEUE_WAIT
} hr__queue_command_kind;

typedef struct hr__queue_command {
	hr__queue_command_kind kind;
	union {
		struct {
			uint64_t to, from, bytes;
			hr_copy_kind kind;
		} copy;
		struct {
			uint64_t address, bytes;
			uint8_t value;
		} fill;
		struct {
			void (*run)(void *);
			void *argument;
		} call;
		struct {
			uint64_t ns;
		} compute;
		struct {
			hr__queue *queue;
			uint64_t ticket;
		} wait;
	} as;
} hr__queue_command;

/* Runs one command, on the worker. Sets the message on failure. Wait commands are not passed to it. */
typedef hr_status (*hr__queue_runner)(void *device, const hr__queue_command *command);

/* Called on the worker after command [ticket] of stream [stream] has run and before it counts as completed. */
typedef void (*hr__queue_listener)(void *device, uint32_t stream, uint64_t ticket);

/* The first command starts the thread. [stream] is only passed to the listener. HR_NO_HOST_MEMORY. */
hr_status hr__queue_open(hr__queue_runner run, hr__queue_listener ran, void *device, uint32_t stream, hr__queue **out);

/* Ends the worker after all commands are completed. The queue stays valid: its tickets are past, and a new command starts a new
 * worker. */
void hr__queue_stop(hr__queue *queue);
void hr__queue_close(hr__queue *queue); /* stops the queue first */

/* Submits a command; blocks while the queue is full. Fails only when no thread can be started. */
hr_status hr__queue_push(hr__queue *queue, const hr__queue_command *command);

uint64_t hr__queue_ticket(hr__queue *queue);
bool hr__queue_is_past(hr__queue *queue, uint64_t ticket);
void hr__queue_wait(hr__queue *queue, uint64_t ticket);

/* The first error of a command since the last call, as status and message of the calling thread. */
hr_status hr__queue_error(hr__queue *queue);

#endif
