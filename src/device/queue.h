/* queue.h - a stream of the emulated device: a worker thread that runs commands in order.
 *
 * Commands are numbered from 1. A moment in the stream is the number of the last command given so far, its ticket; it is past when
 * that many are completed. So recording an event is reading a number, and an event never needs a place in the queue. Who wants to know
 * when a moment was is told of each command as it ends, just before it counts as completed.
 *
 * A command may wait for a ticket of another queue. Tickets are only ever of commands that were given before, so waiting cannot go
 * in circles, also when a full queue makes giving a command block. */
#ifndef HR_DEVICE_QUEUE_H
#define HR_DEVICE_QUEUE_H

#include "headroom_backend.h"

typedef struct hr__queue hr__queue;

typedef enum hr__command_kind {
	HR__COMMAND_COPY = 1,
	HR__COMMAND_FILL,
	HR__COMMAND_CALL,
	HR__COMMAND_COMPUTE,
	HR__COMMAND_WAIT
} hr__command_kind;

typedef struct hr__command {
	hr__command_kind kind;
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
} hr__command;

/* Runs one command, on the worker. What fails sets the message, as anywhere. Waits are not passed on. */
typedef hr_status (*hr__command_runner)(void *device, const hr__command *command);

/* Told, on the worker, that command [ticket] of stream [stream] has run; afterwards it is past. */
typedef void (*hr__command_listener)(void *device, uint32_t stream, uint64_t ticket);

/* The thread is started by the first command. [stream] is only passed on. HR_NO_HOST_MEMORY. */
hr_status hr__queue_open(hr__command_runner run, hr__command_listener ran, void *device, uint32_t stream, hr__queue **out);

/* Ends the worker when all commands are completed. The queue stays: its tickets are past, and a new command starts a new worker. */
void hr__queue_stop(hr__queue *queue);
void hr__queue_close(hr__queue *queue); /* stops it first */

/* Gives a command; blocks while the queue is full. Fails only when no thread can be started. */
hr_status hr__queue_push(hr__queue *queue, const hr__command *command);

uint64_t hr__queue_ticket(hr__queue *queue);
bool hr__queue_is_past(hr__queue *queue, uint64_t ticket);
void hr__queue_wait(hr__queue *queue, uint64_t ticket);

/* The first error of a command since the last time this was asked, as status and message of the calling thread. */
hr_status hr__queue_error(hr__queue *queue);

#endif
