/* record.h - for the functions that answer: the driver's function, and a call of it that is recorded. */
#ifndef HR_PLUGIN_CUDA_RECORD_H
#define HR_PLUGIN_CUDA_RECORD_H

#include "driver.h"
#include "ledger.h"

/* Calls the driver's function. The first call of a program that is linked to the driver finds the driver. Where the driver lacks the function, only a
 * program that is linked to this library's symbol gets here. */
#define HR__REAL(symbol, ...) (hr__driver_find() && hr__driver.symbol ? hr__driver.symbol(__VA_ARGS__) : HR__CUDA_ERROR_NOT_INITIALIZED)

/* Takes memory: [take] is the driver's call, which writes [address], and is made again where memory that --manage keeps for later was in its way, and [undo] the one that gives it back. Evaluates to the result for the program.
 * [request] has its device and context. */
#define HR__RECORD_TAKE(request, address, take, undo)                          \
	({                                                                         \
		CUresult taken_ = HR__CUDA_ERROR_OUT_OF_MEMORY;                        \
		if (hr__ledger_admits(request)) {                                      \
			taken_ = (take);                                                   \
			if (taken_ == HR__CUDA_ERROR_OUT_OF_MEMORY && hr__ledger_make_room(request)) taken_ = (take); \
			if (taken_ == HR__CUDA_ERROR_OUT_OF_MEMORY) {                      \
				hr__ledger_refuse(request);                                    \
			} else if (taken_ == HR__CUDA_SUCCESS && !hr__ledger_add(request, (uint64_t)(uintptr_t)(address))) { \
				(void)(undo);                                                  \
				taken_ = HR__CUDA_ERROR_OUT_OF_MEMORY;                         \
			}                                                                  \
		}                                                                      \
		taken_;                                                                \
	})

#endif
