#!/usr/bin/env python3
"""Large Model Support under PyTorch on a card: CUDA graphs and torch.compile with a limit, and several GPUs.

    HEADROOM_LIBRARY_DIR=build torch_lms.py [GROUP...]

groups.py says what it prints.
"""
import copy
import sys

import groups
from groups import GIB, MIB, NATIVE, check, equal, group, install, skip, tensor_of

LIMIT = GIB
ALONE = {} if NATIVE else {"limit": LIMIT, "lms": True}


def evictions(device):
    if NATIVE:
        return 0
    import headroom.torch
    return headroom.torch.lms_stats(device)["num_evictions"]


def crowd(torch, device="cuda"):
    """More than the limit, so that all that can be evicted was evicted since."""
    return [torch.full((64 * MIB,), value, dtype=torch.uint8, device=device) for value in range(24)]


def check_crowd(tensors, device=0):
    before = evictions(device)
    for value, tensor in enumerate(tensors):
        equal((int(tensor.min()), int(tensor.max())), (value, value))
    assert NATIVE or evictions(device) > before, "nothing was evicted"


def within_limit(torch):
    assert NATIVE or torch.cuda.memory_reserved() <= LIMIT, torch.cuda.memory_reserved()


def finish():
    if not NATIVE:
        import headroom.torch
        headroom.torch.check()


# ---- CUDA graphs ----

@group("graphs")
def graphs():
    torch = install(**ALONE)
    cuda = torch.cuda
    with check("a graph keeps what its ops use, and everything else moves"):
        x, y = (torch.full((32 * MIB,), value, dtype=torch.uint8, device="cuda") for value in (3, 4))
        others = crowd(torch)
        side = cuda.Stream()
        with cuda.stream(side):
            equal(int(x[0]), 3)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=side):
            total = x + y
            more = total + x
        for turn in range(3):
            x.fill_(turn)
            check_crowd(others)
            graph.replay()
            equal((int(total.min()), int(total.max()), int(more.max())), (turn + 4, turn + 4, 2 * turn + 4))
            within_limit(torch)
    with check("a capture makes room for its memory"):
        second = cuda.CUDAGraph()
        with cuda.graph(second):
            results = [x + 1]
            for _ in range(11):
                results.append(results[-1] + 1)    # 384 MiB
        within_limit(torch)
        check_crowd(others)
        second.replay()
        equal([int(result.max()) for result in results], [2 + 1 + i for i in range(12)])
    with check("another stream joins the capture"):
        third, joined = cuda.CUDAGraph(), cuda.Stream()
        with cuda.stream(joined):
            equal(int(y[0]), 4)    # the engine knows the stream
        with cuda.graph(third):
            a = x + 2
            joined.wait_stream(cuda.current_stream())
            with cuda.stream(joined):
                b = y + 2
            cuda.current_stream().wait_stream(joined)
            c = a + b
        check_crowd(others)
        third.replay()
        equal(int(c.max()), 2 + 2 + 4 + 2)
    with check("a capture that finds no room raises, and the program continues"):
        fourth = cuda.CUDAGraph()
        try:
            with cuda.graph(fourth):
                kept = [other + 1 for other in others]
        except RuntimeError:
            cuda.set_stream(cuda.default_stream())    # torch.cuda.graph leaves the captured one
        else:
            assert NATIVE
        kept = fourth = None
        second = third = a = b = c = results = None
        cuda.empty_cache()
        others = None
        check_crowd(crowd(torch))
    finish()


def train(torch, model, batches, step):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for batch in batches:
        losses.append(step(model, optimizer, batch))
    return losses


def batches(torch, count=6):
    torch.manual_seed(5)
    return [torch.randn(256, 1024, device="cuda") for _ in range(count)]


def network(torch):
    torch.manual_seed(3)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))]
    return torch.nn.Sequential(*layers).cuda()    # 201 MB


def plain_step(model, optimizer, batch):
    optimizer.zero_grad(set_to_none=True)
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def close(seen, expected):
    assert all(abs(a - b) <= 1e-3 * abs(b) for a, b in zip(seen, expected, strict=True)), (seen, expected)


@group("training")
def training():
    """A whole step in a graph, and make_graphed_callables, against the same steps without graphs."""
    torch = install(**ALONE)
    cuda = torch.cuda
    data = batches(torch)
    expected = train(torch, network(torch), data, plain_step)
    others = crowd(torch)
    with check("a captured step trains as an ordinary one"):
        model = network(torch)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        static, initial = data[0].clone(), copy.deepcopy(model.state_dict())
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(2):
                plain_step(model, optimizer, static)
        cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        model.load_state_dict(initial)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            loss = (model(static) - static).square().mean()
            loss.backward()
            optimizer.step()
        model.load_state_dict(initial)
        losses = []
        for turn, batch in enumerate(data):
            static.copy_(batch)
            graph.replay()
            losses.append(loss.item())
            if turn % 2:
                check_crowd(others)
        close(losses, expected)
        within_limit(torch)
        graph = loss = optimizer = model = None
    with check("make_graphed_callables trains as the module does"):
        model = network(torch)
        graphed = cuda.make_graphed_callables(model, (data[0].clone(),))

        def step(module, optimizer, batch):
            loss = plain_step(module, optimizer, batch)
            check_crowd(others)
            return loss

        close(train(torch, graphed, data, step), expected)
        within_limit(torch)
    finish()


@group("compile")
def compiled():
    torch = install(**ALONE)
    try:
        import triton    # noqa: F401
    except ImportError:
        skip("torch.compile with a limit", "no Triton")
        return
    data = batches(torch)
    expected = train(torch, network(torch), data, plain_step)
    others = crowd(torch)
    for mode in ("default", "reduce-overhead"):
        with check(f"torch.compile, mode {mode}, trains with a limit"):
            model = network(torch)
            fast = torch.compile(model, mode=mode)

            def step(_, optimizer, batch):
                torch.compiler.cudagraph_mark_step_begin()
                optimizer.zero_grad(set_to_none=True)
                loss = (fast(batch) - batch).square().mean()
                loss.backward()
                optimizer.step()
                value = loss.item()
                check_crowd(others)
                return value

            close(train(torch, model, data, step), expected)
            within_limit(torch)
            model = fast = None
    finish()


@group("gpus")
def gpus():
    torch = install(**ALONE)
    if torch.cuda.device_count() < 2:
        skip("tensors of several GPUs", "there is one GPU")
        return
    with check("a second GPU evicts to its own limit"):
        others = crowd(torch, "cuda:1")
        check_crowd(others, 1)
        assert NATIVE or torch.cuda.memory_reserved(1) <= LIMIT
    with check("copies between GPUs, contiguous and not"):
        first = [torch.full((64 * MIB,), value, dtype=torch.uint8, device="cuda:0") for value in range(24)]
        for value, tensor in enumerate(first):
            others[value].copy_(tensor)
            equal(int(others[value].max()), value)
        square = torch.arange(1 << 20, dtype=torch.int32, device="cuda:0").view(1024, 1024)
        equal(bool((square.t().to("cuda:1").cpu() == square.t().cpu()).all()), True)
        target = torch.zeros(1024, 1024, dtype=torch.int64, device="cuda:1")
        target.t().copy_(square)
        equal(bool((target.t().cpu() == square.cpu()).all()), True)
        check_crowd(first)
    finish()


@group("pools")
def pools():
    torch = install(**ALONE)
    with check("memory of a MemPool stays, and counts against the limit"):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = tensor_of(torch, 256 * MIB, 7)
        address = inside.data_ptr()
        others = crowd(torch)
        check_crowd(others)
        equal((inside.data_ptr(), int(inside.min())), (address, 7))
        within_limit(torch)
        segments = torch.cuda.memory_snapshot()
        equal(sum(segment["total_size"] for segment in segments), torch.cuda.memory_reserved())
        del inside, pool
        torch.cuda.empty_cache()
        check_crowd(others)
    finish()


if __name__ == "__main__":
    sys.exit(groups.main())
