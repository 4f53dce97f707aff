"""Reads a trace as docs/trace-format.md describes it, and sums up memory use: an independent reference for tests, slow and simple
on purpose."""
import heapq
import struct

ALLOC, FREE, ALLOC_FAILED, MAP, UNMAP, STITCH, OP_BEGIN, OP_END, READ, WRITE, STEP, STEP_END, SCOPE_PUSH, SCOPE_POP, EVICT, RESTORE, MOVE, MARK = range(1, 19)
HAS_ADDRESS = {ALLOC, FREE, MAP, UNMAP, STITCH, READ, WRITE, EVICT, RESTORE, MOVE}
HAS_ADDRESS2 = {EVICT, RESTORE, MOVE}
HAS_BYTES = set(range(1, 19)) - {FREE, OP_BEGIN, SCOPE_PUSH, SCOPE_POP}
STREAMLESS = {MAP, UNMAP, STITCH, STEP, STEP_END, SCOPE_PUSH, SCOPE_POP, MARK}
HAS_ALLOCATOR = HAS_ADDRESS | {ALLOC_FAILED}
HAS_OP = {ALLOC, ALLOC_FAILED, OP_BEGIN, OP_END, READ, WRITE, EVICT, RESTORE, MARK}
HAS_SCOPE = (HAS_OP - {READ, WRITE}) | {STEP, STEP_END, SCOPE_PUSH, SCOPE_POP}
HAS_TAG = HAS_SCOPE - {SCOPE_PUSH, SCOPE_POP}
HAS_SHAPE = {ALLOC, ALLOC_FAILED, EVICT, RESTORE}
DTYPES = ["?", "float32", "float64", "int32", "int64", "uint8", "bool", "bfloat16", "float16", "int8", "int16"]


def varint(data, at):
    first = data[at]
    size = 9 if first == 0 else (first & -first).bit_length()
    if size == 9:
        return int.from_bytes(data[at + 1:at + 9], "little"), at + 9
    return int.from_bytes(data[at:at + size], "little") >> size, at + size


def zigzag(data, at):
    value, at = varint(data, at)
    return value >> 1 ^ -(value & 1), at


class Event:
    __slots__ = ("kind", "time", "thread", "allocator", "stream", "address", "address2", "bytes", "requested", "op", "scope", "tag", "shape", "dtype")


class Trace:
    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        header_size, block_size, self.rate = *struct.unpack_from("<I", data, 12), *struct.unpack_from("<I", data, 32), *struct.unpack_from("<Q", data, 56)
        self.names, self.shapes, self.devices, self.allocators, self.limits = {0: "", 1: "(other)"}, {0: "", 1: "?"}, {}, {}, {}
        lanes, blocks = {}, range(header_size, len(data), block_size)
        for block in blocks:
            self.read_block(data, block, None)
        for block in blocks:
            self.read_block(data, block, lanes)
        self.events = list(heapq.merge(*lanes.values(), key=lambda event: event.time))

    def read_block(self, data, block, lanes):
        """Reads definitions first, events in a second pass: a name may be defined after it is used."""
        magic, kind, lane, thread, _, time, committed = struct.unpack_from("<IB3xIIQQI", data, block)
        if magic == 0 or kind >= 128:
            return
        assert kind == 1, "not a block that this reader knows"
        at, end = block + 64, min(block + 64 + committed, len(data))
        now = dict.fromkeys(("allocator", "stream", "tag", "dtype", "op", "scope", "shape", "address"), 0)
        while at < end:
            tag, = struct.unpack_from("<H", data, at)
            at += 2
            kind = tag & 63
            if kind > 18:
                length, at = varint(data, at)
                if lanes is None:
                    self.define(kind, data[at:at + length])
                elif kind == 36:
                    thread, _ = varint(data, at)
                at += length
                continue
            event = Event()
            at, time = self.read_event(data, at, tag, kind, now, time, event)
            event.kind, event.thread, event.time = kind, thread, time * 1000000000 // self.rate
            if lanes is not None:
                lanes.setdefault(lane, []).append(event)

    def read_event(self, data, at, tag, kind, now, time, event):
        if tag & 1 << 6:
            bits = data[at]
            at += 1
            if bits & 1:
                now["allocator"], at = varint(data, at)
            if bits & 2:
                now["stream"], at = varint(data, at)
            if bits & 4:
                now["tag"], at = struct.unpack_from("<H", data, at)[0], at + 2
            if bits & 8:
                now["dtype"], at = data[at], at + 1
        event.address = event.address2 = event.bytes = event.requested = 0
        if kind in HAS_ADDRESS:
            if tag & 1 << 10:
                way, at = zigzag(data, at)
            else:
                way, at = struct.unpack_from("<i", data, at)[0] * 256, at + 4
            now["address"] = event.address = (now["address"] + way) % 2 ** 64
        if kind in HAS_ADDRESS2:
            way, at = zigzag(data, at)
            event.address2 = (event.address + way) % 2 ** 64
        if kind in HAS_BYTES:
            form = tag >> 11 & 3
            if form:
                event.bytes, at = varint(data, at)
                event.bytes *= 256 if form == 2 else 1
            event.requested = event.bytes
            if form == 3:
                event.requested, at = varint(data, at)
            elif tag & 1 << 13:
                event.requested, at = (event.bytes - data[at]) % 2 ** 64, at + 1
        for bit, field in ((7, "op"), (8, "scope"), (9, "shape")):
            if tag & 1 << bit:
                now[field], at = struct.unpack_from("<H", data, at)[0], at + 2
        if tag & 1 << 14:
            way, at = varint(data, at)
        else:
            way, at = struct.unpack_from("<H", data, at)[0], at + 2
        if tag & 1 << 15:
            length, at = varint(data, at)
            at += length
        event.allocator = now["allocator"] if kind in HAS_ALLOCATOR else 0
        event.stream = now["stream"] if kind not in STREAMLESS else 0
        event.op = now["op"] if kind in HAS_OP else 0
        event.scope = now["scope"] if kind in HAS_SCOPE else 0
        event.tag = now["tag"] if kind in HAS_TAG else 0
        event.shape, event.dtype = (now["shape"], now["dtype"]) if kind in HAS_SHAPE else (0, 0)
        return at, time + way

    def define(self, kind, data):
        number, at = varint(data, 0)
        if kind == 32:
            self.names[number] = data[at:]
        elif kind == 33:
            rank, at = varint(data, at)
            dims = []
            for _ in range(rank):
                value, at = varint(data, at)
                dims.append(str(value))
            self.shapes[number] = "[" + ",".join(dims) + "]"
        elif kind == 34:
            limit, at = varint(data, at)
            _, at = varint(data, at)
            self.devices[number] = (data[at:].decode(), limit)
        elif kind == 35:
            device, at = varint(data, at)
            length, at = varint(data, at)
            self.allocators[number] = (data[at:at + length].decode(), device)
        elif kind == 37:
            self.limits[number], at = varint(data, at)

    def name(self, number):
        text = self.names.get(number, "(other)")
        return text if isinstance(text, str) else text.decode(errors="replace")


class Block:
    __slots__ = ("bytes", "slack", "op", "scope", "tag", "tensor", "begin", "end", "address", "device", "birth")


class Ledger:
    """Bytes in use on each device, and the time of the peak."""

    def __init__(self, trace):
        self.devices = {name: {"limit": limit, "now": 0, "peak": 0, "peak_time": 0, "peak_live": [], "blocks": [], "totals": [], "out": 0, "in": 0}
                        for name, limit in trace.devices.values()}
        self.steps, self.ops, live, freed, running, copies, step = [], {}, {}, {}, {}, {}, None
        for event in trace.events:
            self.end = event.time
            device = self.devices[trace.devices[trace.allocators[event.allocator][1]][0]] if event.allocator else None
            if event.kind == ALLOC:
                block = Block()
                block.bytes, block.slack, block.begin, block.end, block.address = event.bytes, event.bytes - event.requested, event.time, None, event.address
                block.op, block.scope, block.tag = trace.name(event.op), trace.name(event.scope), trace.name(event.tag)
                block.tensor = " ".join(filter(None, ["" if DTYPES[event.dtype] == "?" else DTYPES[event.dtype], trace.shapes[event.shape]]))
                block.device = device
                block.birth = block
                live[event.allocator, event.address] = block
                device["blocks"].append(block)
                self.count(device, block.bytes, event.time)
                if step:
                    self.in_step(step, device, block)
            elif event.kind == FREE:
                block = live.pop((event.allocator, event.address))
                block.end = event.time
                freed[event.allocator, event.address] = block
                self.count(device, -block.bytes, event.time)
            elif event.kind == EVICT:
                device["out"] += event.bytes
                if event.address2 >> 62 == 3:  # dropped: it is freed first, and is the same tensor when it is recomputed
                    copies[event.allocator, event.address2] = freed[event.allocator, event.address].birth
                if event.bytes and (event.allocator, event.address) in live:
                    copies[event.allocator, event.address2] = live[event.allocator, event.address].birth
            elif event.kind == RESTORE:
                device["in"] += event.bytes
                if (event.allocator, event.address) in live:  # a tensor that was moved there, or a block from before the recording
                    live[event.allocator, event.address].birth = copies.get((event.allocator, event.address2))
            elif event.kind == STEP:
                step = {"number": event.bytes, "begin": event.time, "end": None, "made": set(), "devices": {}}
                for one in self.devices.values():
                    step["devices"][id(one)] = {"peak": one["now"], "allocations": 0, "bytes": 0, "left": 0}
                self.steps.append(step)
            elif event.kind == STEP_END and step:
                step["end"] = event.time
                for block in live.values():
                    if block.birth in step["made"]:
                        step["devices"][id(block.device)]["left"] += block.bytes
                step = None
            elif event.kind == OP_BEGIN:
                running.setdefault(event.thread, []).append(event)
            elif event.kind == OP_END and running.get(event.thread):
                begin = running[event.thread].pop()
                runs, ns = self.ops.get(trace.name(begin.op), (0, 0))
                self.ops[trace.name(begin.op)] = runs + 1, ns + event.time - begin.time
        for device in self.devices.values():
            self.find_peak(device)

    @staticmethod
    def count(device, bytes, time):
        device["now"] += bytes
        device["totals"].append((time, device["now"]))
        if device["now"] > device["peak"]:
            device["peak"], device["peak_time"], device["peak_change"] = device["now"], time, len(device["totals"])

    @staticmethod
    def in_step(step, device, block):
        sums = step["devices"][id(device)]
        sums["allocations"] += 1
        sums["bytes"] += block.bytes
        sums["peak"] = max(sums["peak"], device["now"])
        step["made"].add(block)

    @staticmethod
    def find_peak(device):
        """Finds the blocks live at the peak. Events may have the same nanosecond; the sum shows whether time alone distinguishes
        them."""
        device["peak_live"] = [b for b in device["blocks"] if b.begin <= device["peak_time"] and (b.end is None or b.end > device["peak_time"])]
        device["peak_is_clear"] = sum(b.bytes for b in device["peak_live"]) == device["peak"]

    @staticmethod
    def most_between(device, t0, t1):
        before = [total for time, total in device["totals"] if time < t0][-1:]
        return max(before + [total for time, total in device["totals"] if t0 <= time < t1], default=0)
