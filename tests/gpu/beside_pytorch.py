#!/usr/bin/env python3
"""Headroom in a process whose CUDA context PyTorch created and still uses after Headroom is shut down.

    beside_pytorch.py <libheadroom.so>

PyTorch trains a little, Headroom allocates, fills and copies on the same card and on one of PyTorch's streams, each reads what the
other wrote, Headroom shuts down, PyTorch continues training and gets the same numbers as without Headroom.
"""
import ctypes
import sys

SKIPPED = 77


def main():
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch")
        return SKIPPED
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return SKIPPED

    def train(steps, model=None):
        if model is None:
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = None
        for step in range(steps):
            x = torch.arange(64 * 256, device="cuda", dtype=torch.float32).reshape(64, 256).sin() * (step + 1)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model, loss.item()

    alone = train(20)[1]
    model, _ = train(10)

    hr = ctypes.CDLL(sys.argv[1])
    hr.hr_last_message.restype = ctypes.c_char_p

    class Device(ctypes.Structure):
        _fields_ = [("id", ctypes.c_uint32)]

    class Allocator(ctypes.Structure):
        _fields_ = [("id", ctypes.c_uint64)]

    def must(status):
        assert status == 0, hr.hr_last_message().decode()

    TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
    device, allocator, block = Device(), Allocator(), ctypes.c_void_p()
    must(hr.hr_cuda_check())
    must(hr.hr_device_find(b"GPU:0", ctypes.byref(device)))
    must(hr.hr_allocator_get_default(b"GPU:0", ctypes.byref(allocator)))

    side = torch.cuda.Stream()
    stream = ctypes.c_uint32()
    must(hr.hr_stream_import(device, ctypes.c_uint64(side.cuda_stream), ctypes.byref(stream)))

    size = 32 << 20
    must(hr.hr_alloc_bytes(allocator, ctypes.c_size_t(size), ctypes.byref(block)))
    tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    # On PyTorch's stream: filled by Headroom, copied into PyTorch's memory, changed by PyTorch, copied back.
    must(hr.hr_stream_fill(device, block, ctypes.c_ubyte(0x21), ctypes.c_size_t(size), stream))
    must(hr.hr_stream_copy(device, ctypes.c_void_p(tensor.data_ptr()), block, ctypes.c_size_t(size), ON_DEVICE, stream))
    with torch.cuda.stream(side):
        tensor += 1
    must(hr.hr_stream_copy(device, block, ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(size), ON_DEVICE, stream))
    back = (ctypes.c_ubyte * size)()
    must(hr.hr_stream_copy(device, back, block, ctypes.c_size_t(size), TO_HOST, stream))
    must(hr.hr_stream_synchronize(device, stream))
    assert bytes(back) == b"\x22" * size, "bytes differ"
    assert int(tensor.min()) == int(tensor.max()) == 0x22

    must(hr.hr_free(allocator, block, stream))
    train(5, model)  # in between
    must(hr.hr_stream_destroy(device, stream))
    must(hr.hr_shutdown())

    # The context is still PyTorch's, and its numbers are unchanged.
    torch.cuda.synchronize()
    assert train(20)[1] == alone
    # The library can be used again after shutdown.
    must(hr.hr_allocator_get_default(b"GPU:0", ctypes.byref(allocator)))
    must(hr.hr_alloc_bytes(allocator, ctypes.c_size_t(1 << 20), ctypes.byref(block)))
    must(hr.hr_free(allocator, block, ctypes.c_uint32(0)))
    must(hr.hr_shutdown())
    assert train(20)[1] == alone
    print(f"ok: beside PyTorch {torch.__version__}; loss {alone:.6f} with and without")
    return 0


sys.exit(main())
