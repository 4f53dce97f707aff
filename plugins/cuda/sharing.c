/* sharing.c - other cards and other processes, which cannot access managed blocks: those are mapped for their own card alone.
 *
 * With --manage the program sees cards that cannot access each other's memory, and does what it does on a machine with such cards. Blocks that it wants
 * to hand to another process are refused by the driver, as all mapped memory is; a line says what to do. */
#include "manage.h"
#include "record.h"
#include "settings.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

static void say_once(int *said, const char *what)
{
	if (!__atomic_exchange_n(said, 1, __ATOMIC_RELAXED)) hr__settings_say("%s", what);
}

static void say_peers(void)
{
	static int said;
	say_once(&said, "cards are shown to the program as without access to each other's memory, because blocks of --manage are for one card; --observe leaves it");
}

CUresult cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer)
{
	CUresult result = HR__REAL(cuDeviceCanAccessPeer, out, device, peer);
	if (result != HR__CUDA_SUCCESS || !*out || !hr__manage_is_on()) return result;
	*out = 0;
	say_peers();
	return result;
}

/* All of its attributes are about access. */
CUresult cuDeviceGetP2PAttribute(int *out, CUdevice_P2PAttribute which, CUdevice device, CUdevice peer)
{
	CUresult result = HR__REAL(cuDeviceGetP2PAttribute, out, which, device, peer);
	if (result == HR__CUDA_SUCCESS && hr__manage_is_on()) *out = 0;
	return result;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	if (!hr__manage_is_on()) return HR__REAL(cuCtxEnablePeerAccess, peer, flags);
	say_peers();
	return HR__CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
	static int said;
	hr__block block;
	CUresult result = HR__REAL(cuIpcGetMemHandle, out, address);
	if (result != HR__CUDA_SUCCESS && hr__manage_is_on() && hr__manage_find(address, &block))
		say_once(&said, "the program shares memory with another process by cuIpcGetMemHandle, which refuses blocks of --manage; run it with --observe");
	return result;
}
