"""Writes trace files, from docs/trace-format.md alone: the command's output is compared with what was written."""
import struct

ALLOC, FREE, ALLOC_FAILED, MAP, UNMAP, STITCH, OP_BEGIN, OP_END, READ, WRITE, STEP, STEP_END = range(1, 13)
EVICT, RESTORE, MOVE, MARK = range(15, 19)
NAME, SHAPE, DEVICE, ALLOCATOR = 32, 33, 34, 35
FRAME, STACK = 38, 39

WITH_ALLOCATOR = {ALLOC, FREE, ALLOC_FAILED, MAP, UNMAP, STITCH, READ, WRITE, EVICT, RESTORE, MOVE}
WITH_ADDRESS = {ALLOC, FREE, MAP, UNMAP, STITCH, READ, WRITE, EVICT, RESTORE, MOVE}
WITH_ADDRESS2 = {EVICT, RESTORE, MOVE}
WITH_BYTES = {ALLOC, ALLOC_FAILED, MAP, UNMAP, STITCH, OP_END, READ, WRITE, STEP, STEP_END, EVICT, RESTORE, MOVE, MARK}
WITH_OP = {ALLOC, ALLOC_FAILED, OP_BEGIN, OP_END, READ, WRITE, EVICT, RESTORE, MARK}
WITH_SCOPE = {ALLOC, ALLOC_FAILED, OP_BEGIN, OP_END, STEP, STEP_END, EVICT, RESTORE, MARK}
WITH_TAG = {ALLOC, ALLOC_FAILED, OP_BEGIN, OP_END, STEP, STEP_END, EVICT, RESTORE, MARK}
WITH_SHAPE = {ALLOC, ALLOC_FAILED, EVICT, RESTORE}


def varint(value):
    for length in range(1, 9):
        if value < 1 << 7 * length:
            return (value << length | 1 << (length - 1)).to_bytes(length, "little")
    return b"\0" + value.to_bytes(8, "little")


def zigzag(value):
    value = (value + (1 << 63)) % (1 << 64) - (1 << 63)  # arithmetic on addresses wraps
    return varint(value << 1 if value >= 0 else ((-value) << 1) - 1)


class Trace:
    """Events with times in nanoseconds; names and shapes are defined at their first occurrence."""

    def __init__(self, devices=(("GPU:0", 1 << 30),)):
        self.records = b""
        self.names, self.shapes, self.frames, self.stacks = {"": 0}, {None: 0}, {}, {}
        self.time, self.address = 0, 0
        for number, (name, limit) in enumerate(devices):
            self.define(DEVICE, varint(number) + varint(limit) + varint(0) + name.encode())
            self.define(ALLOCATOR, varint(number + 1) + varint(number) + varint(3) + b"bfc" + b"bfc")

    def define(self, kind, payload):
        self.records += struct.pack("<H", kind) + varint(len(payload)) + payload

    def name(self, text):
        if text not in self.names:
            self.names[text] = len(self.names) + 1
            self.define(NAME, varint(self.names[text]) + (text if isinstance(text, bytes) else text.encode()))
        return self.names[text]

    def shape(self, dims):
        if dims not in self.shapes:
            self.shapes[dims] = len(self.shapes) + 1
            self.define(SHAPE, varint(self.shapes[dims]) + varint(len(dims)) + b"".join(map(varint, dims)))
        return self.shapes[dims]

    def frame(self, function, file, line, module, offset):
        key = function, file, line, module, offset
        if key not in self.frames:
            self.frames[key] = len(self.frames) + 2
            names = self.name(function), self.name(file), self.name(module)
            self.define(FRAME, b"".join(map(varint, (self.frames[key], names[0], names[1], line, names[2], offset))))
        return self.frames[key]

    def stack(self, frames):
        """The number of a stack, given as (function, file, line) or (function, file, line, module, offset), innermost first."""
        if frames not in self.stacks:
            numbers = [self.frame(*frame, *("", 0)[len(frame) - 3:]) for frame in frames]
            self.stacks[frames] = len(self.stacks) + 2
            self.define(STACK, b"".join(map(varint, [self.stacks[frames], len(numbers), *numbers])))
        return self.stacks[frames]

    def event(self, kind, time, allocator=1, address=0, bytes=0, op="", scope="", tag="", shape=None, dtype=1, address2=None, stack=None):
        extension = b""
        if stack:
            extension = varint(3) + struct.pack("<BH", 1, self.stack(stack))
        tag_bits, context, body = kind | 1 << 14, 0, b""
        op, scope, tag, shape = self.name(op), self.name(scope), self.name(tag), self.shape(shape)
        if kind in WITH_ALLOCATOR:
            context |= 1
            body += varint(allocator)
        if kind in WITH_TAG:
            context |= 4
            body += struct.pack("<H", tag)
        if kind in WITH_SHAPE:
            context |= 8
            body += struct.pack("<B", dtype)
        if context:
            tag_bits |= 1 << 6
            body = struct.pack("<B", context) + body
        if kind in WITH_ADDRESS:
            tag_bits |= 1 << 10
            body += zigzag(address - self.address)
            self.address = address
        if kind in WITH_ADDRESS2:
            body += zigzag(0 if address2 is None else address2 - address)
        if kind in WITH_BYTES:
            tag_bits |= 1 << 11
            body += varint(bytes)
        for present, bit, number in ((WITH_OP, 7, op), (WITH_SCOPE, 8, scope), (WITH_SHAPE, 9, shape)):
            if kind in present:
                tag_bits |= 1 << bit
                body += struct.pack("<H", number)
        body += varint(time - self.time)
        self.time = time
        if extension:
            tag_bits |= 1 << 15
        self.records += struct.pack("<H", tag_bits) + body + extension

    def bytes(self, major=1, limited=False, lost=0):
        block_size = max(256, 64 + len(self.records))
        assert block_size <= 16 << 20
        block = struct.pack("<IB3xIIQQII24x", 0x4B425248, 1, 0, 0, 0, 0, len(self.records), 0) + self.records
        block += b"\0" * (block_size - len(block))
        header = b"\x89HRT\r\n\x1a\n" + struct.pack("<HHIQQIIQQQIIQQII32s", major, 1, 128, 0, int(limited), block_size, 0x01020304, 0, 0, 10**9, 0, 1, lost,
                                                     128 + block_size, 1, 0, b"test")
        assert len(header) == 128
        return header + block
