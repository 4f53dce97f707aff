#!/usr/bin/env python3
"""Synthetic traces, for cases that the recorded traces do not cover: programs that request memory as real ones do.

    train    a transformer trained with sequences of varying length: permanent weights, activations that accumulate in the
             forward pass and are freed in reverse in the backward pass, gradients, optimizer state from the first step on
    serve    a language model that answers requests: key and value caches that grow by being copied to larger blocks,
             batches of varying size, requests that arrive and end
    random   sizes over five orders of magnitude, mostly short lifetimes, some long

With several streams, blocks are allocated on one stream and freed on another: inputs are prefetched, gradients are reduced
and freed on a communication stream, answers are freed on the stream that reads them. One thread gives a CSV as in traces/.
Several give an RMM log, which has a column for the thread: each thread runs a program of its own, and one free in twenty is
made by a random thread. The same arguments give the same trace, which ends after the given number of events, with blocks
still live.
"""
import argparse
import heapq
import random
import sys


class Full(Exception):
    """The thread has as many events as it should have."""


class Thread:
    def __init__(self, seed, streams, wanted):
        self.random = random.Random(seed)
        self.streams, self.wanted = streams, wanted
        self.time_us = 0
        self.sizes = []   # of each block, by number
        self.events = []  # (time_us, "a" or "f", block, bytes, stream)

    def below(self, bound):
        return int(self.random.random() * bound)

    def chance(self, n):
        return self.below(n) == 0

    def side_stream(self):
        """A random stream other than 0; 0 when there is no other."""
        return 1 + self.below(self.streams - 1) if self.streams > 1 else 0

    def _event(self, action, block, stream):
        if len(self.events) == self.wanted:
            raise Full
        self.time_us += 1 + self.below(20)
        self.events.append((self.time_us, action, block, self.sizes[block], stream))

    def alloc(self, size, stream=0):
        self.sizes.append(max(int(size), 1))
        self._event("a", len(self.sizes) - 1, stream)
        return len(self.sizes) - 1

    def free(self, block, stream=0):
        self._event("f", block, stream)

    def touch(self, size, stream=0):
        """Allocates a block and frees it at once."""
        self.free(self.alloc(size, stream), stream)


def train(thread):
    layers, hidden = 8 + thread.below(41), thread.random.choice((512, 768, 1024, 1600, 2048, 4096))
    vocabulary, batch, longest = 16000 + 16 * thread.below(8000), 1 + thread.below(16), 512 << thread.below(3)
    flash = thread.chance(2)  # attention without a matrix of scores
    square = hidden * hidden * 2
    weights = (3 * square, square, 4 * square, 4 * square, 4 * hidden, 18 * hidden)
    thread.alloc(vocabulary * hidden * 2)
    for _ in range(layers):
        for size in weights:
            thread.alloc(size)
    first_step = True
    while True:
        # A third of the batches have the maximum length, the others a random one.
        length = longest if thread.chance(3) else 8 + thread.below(longest - 8)
        tokens, source = batch * length, thread.side_stream()
        one = tokens * hidden * 2
        activations = (one, 3 * one, one, 4 * one, 4 * one, tokens * 8)
        inputs = [thread.alloc(tokens * 8, source) for _ in range(2)]
        embedded = thread.alloc(one)
        kept = []
        for _ in range(layers):
            for part, size in enumerate(activations):
                kept.append(thread.alloc(size))
                if part == 1 and not flash:
                    thread.touch(batch * (hidden // 64) * length * length * 2)
                elif thread.chance(3):
                    thread.touch(size // 2)
        logits = thread.alloc(tokens * vocabulary * 2)
        thread.touch(tokens * vocabulary * 4)
        thread.touch(4)
        thread.free(logits)
        gradients = []
        for _ in range(layers):
            for size, weight in zip(reversed(activations), reversed(weights)):
                incoming, gradient = thread.alloc(size), thread.alloc(weight)
                thread.free(kept.pop())
                thread.free(incoming)
                if thread.streams > 1 and weight > 1000000:
                    # Another stream frees the gradient, and allocates the reduced one.
                    stream = thread.side_stream()
                    reduced = thread.alloc(weight, stream)
                    thread.free(gradient, stream)
                    gradient = reduced
                gradients.append((gradient, weight))
        thread.free(embedded)
        for block in inputs:
            thread.free(block)
        for gradient, weight in gradients:
            for _ in range(2 if first_step else 0):  # two moments, never freed
                thread.alloc(2 * weight)
            thread.touch(2 * weight)
            thread.free(gradient)
        first_step = False


def serve(thread):
    layers, hidden = 8 + 8 * thread.below(4), 1024 << thread.below(3)
    vocabulary, most_requests = 32000 + 1000 * thread.below(96), 4 + thread.below(60)
    step = 1 << thread.below(7)  # tokens by which caches grow
    kv_bytes = hidden // (1 if thread.chance(2) else 4) * 4  # of a token in one layer
    requests = []
    thread.alloc(vocabulary * hidden * 2)
    for i in range(layers * 2):
        thread.alloc(hidden * hidden * (12 if i % 2 else 8))
    while True:
        if not requests or (len(requests) < most_requests and thread.chance(12)):
            # Most prompts are short, some very long.
            prompt = 16 + thread.below(400) + (thread.below(6000) if thread.chance(8) else 0)
            last = prompt + 8 + thread.below(300) + (thread.below(1500) if thread.chance(6) else 0)
            stream, caches = thread.below(thread.streams), []
            for _ in range(layers):
                activation = thread.alloc(prompt * hidden * 2, stream)
                caches.append(thread.alloc(prompt * kv_bytes, stream))
                thread.touch(prompt * hidden * 6, stream)
                thread.free(activation, stream)
            requests.append({"tokens": prompt, "capacity": prompt, "last": last, "stream": stream, "caches": caches})
        stream = thread.side_stream()
        for _ in range(min(layers, 4)):
            activation = thread.alloc(len(requests) * hidden * 2, stream)
            thread.touch(len(requests) * hidden * 8, stream)
            thread.free(activation, stream)
        thread.touch(len(requests) * vocabulary * 4, stream)
        for request in list(requests):
            stream, caches = request["stream"], request["caches"]
            request["tokens"] += 1
            if request["tokens"] > request["capacity"]:
                request["capacity"] = request["tokens"] + step
                for i, cache in enumerate(caches):
                    caches[i] = thread.alloc(request["capacity"] * kv_bytes, stream)
                    thread.free(cache, stream)
            if request["tokens"] >= request["last"]:
                # One answer in four is freed on a random stream: the one that reads it.
                reader = thread.below(thread.streams) if thread.chance(4) else stream
                for cache in caches:
                    thread.free(cache, reader)
                requests.remove(request)


def random_kind(thread):
    live, live_bytes, most = [], 0, 4096
    while True:
        # The target number of live blocks rises and falls slowly.
        phase = len(thread.events) // 1024 % 8
        target = most * (phase + 1 if phase < 4 else 8 - phase) // 5
        room = len(live) < most and live_bytes < 16 << 30
        if not live or (room and thread.below(100) < (60 if len(live) < target else 45)):
            # 64 bytes to 512 MiB; doublings are equally likely up to 1 MiB, above that each is half as likely as the one before.
            log = 6 + thread.below(15)
            while 20 <= log < 28 and thread.chance(2):
                log += 1
            size = (1 << log) + (0 if thread.chance(3) else thread.below(1 << log))
            stream = thread.below(thread.streams)
            live.append((thread.alloc(size, stream), stream, size))
            live_bytes += size
            continue
        # Most freed blocks are young.
        at = thread.below(len(live)) if thread.chance(4) else len(live) - 1 - thread.below(min(len(live), 32))
        block, stream, size = live.pop(at)
        live_bytes -= size
        thread.free(block, thread.below(thread.streams) if thread.chance(5) else stream)


KINDS = {"train": train, "serve": serve, "random": random_kind}


def trace(kind="train", events=100000, streams=1, threads=1, seed=1):
    """The text of a trace."""
    made = []
    for i in range(threads):
        thread = Thread(f"{seed} {i}", streams, events // threads + (i < events % threads))
        try:
            KINDS[kind](thread)
        except Full:
            made.append([(event[0], i) + event[1:] for event in thread.events])
    if threads == 1:
        return "time_us,action,id,bytes,stream\n" + "".join(f"{us},{action},{block},{size},{stream}\n" for us, _, action, block, size, stream in made[0])
    lines, other = ["Thread,Time,Action,Pointer,Size,Stream"], random.Random(seed)
    for us, thread, action, block, size, stream in heapq.merge(*made, key=lambda event: event[0]):
        address = 0x7f0000000000 + (block * threads + thread) * 256  # each is used once
        by = other.randrange(threads) if action == "f" and other.random() < 0.05 else thread
        clock = f"{us // 3600000000 % 24:02}:{us // 60000000 % 60:02}:{us // 1000000 % 60:02}.{us % 1000000:06}"
        lines.append(f"{1000 + by},{clock},{'free' if action == 'f' else 'allocate'},{address:#x},{size},{stream:#x}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="train")
    for name, default in (("events", 100000), ("streams", 1), ("threads", 1), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=default)
    sys.stdout.write(trace(**vars(parser.parse_args())))
