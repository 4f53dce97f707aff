/* hooks.c - the table of upward calls (core/base/hooks.h). */
#include "core/base/hooks.h"

#include "core/record/peers.h"
#include "core/record/record.h"

hr__hooks hr__hooks_table = {
	.record_begin = hr__record_begin,
	.record_end = hr__record_end,
	.record_forget = hr__record_forget,
	.record_ranks = hr__peers_read,
};
