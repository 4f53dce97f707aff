#!/usr/bin/env python3
"""headroom metrics: the numbers of `headroom top` as OpenMetrics, printed and served; a server that hostile clients do not disturb; the dashboard of
examples/ names only metrics that exist. tests/fleet/test_prometheus.py has the real Prometheus."""
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from serving import Published, run, samples  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


def ask(port, request, host="127.0.0.1"):
    """The whole answer of the server: status, headers, body."""
    with socket.create_connection((host, port), timeout=60) as client:
        client.sendall(request)
        answer = b""
        while part := client.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:]), body.decode()


class Printed(Published):
    def test_the_numbers_are_those_of_top(self):
        program = self.train(RANK="1", WORLD_SIZE="4", LOCAL_RANK="1", MASTER_PORT="29500")
        program.send_signal(signal.SIGSTOP)
        self.addCleanup(program.send_signal, signal.SIGCONT)
        top = json.loads(run("top", "--once", "--json", env=self.env).stdout)
        (shown,) = [p for p in top["programs"] if p["process"] == program.pid]
        found = samples(self.printed())
        labels = (("process", str(program.pid)), ("program", "profile"), ("rank", "1"))
        for device in shown["devices"]:
            def value(name):
                return found[name, tuple(sorted(labels + (("device", device["name"]),)))]
            self.assertEqual(value("headroom_device_in_use_bytes"), device["bytes_in_use"])
            self.assertEqual(value("headroom_device_peak_bytes"), device["peak_bytes_in_use"])
            self.assertEqual(value("headroom_device_allocations_total"), device["num_allocs"])
            self.assertEqual(value("headroom_device_refused_requests_total"), device["num_failed_allocs"])
        self.assertGreater(shown["devices"][0]["num_allocs"], 0)
        (info,) = [dict(labels) for name, labels in found if name == "headroom_program_info" and ("process", str(program.pid)) in labels]
        self.assertEqual((info["rank"], info["ranks"], info["job_id"], info["host"]), ("1", "4", "torchrun:29500::", socket.gethostname()[:47]))
        allocators = {dict(labels)["allocator"]: value for (name, labels), value in found.items()
                      if name == "headroom_allocator_allocations_total" and ("process", str(program.pid)) in labels}
        self.assertEqual(sum(allocators.values()), sum(device["num_allocs"] for device in shown["devices"]))

    def test_every_metric_is_described_in_both_formats(self):
        for format, total in (("openmetrics", ""), ("prometheus", "_total")):
            text = self.printed("--format", format)
            types = dict(re.findall(r"^# TYPE (\S+) (gauge|counter)$", text, re.M))
            helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.M))
            units = dict(re.findall(r"^# UNIT (\S+) (\S+)$", text, re.M))
            self.assertEqual(set(types), set(helps))
            self.assertGreater(len(types), 30)
            for name, kind in types.items():
                self.assertEqual(name.endswith("_total"), kind == "counter" and total != "", name)
            for name, unit in units.items():
                self.assertTrue(name.endswith("_" + unit), name)
            self.assertEqual(bool(units), format == "openmetrics")
            self.assertEqual(text.endswith("\n# EOF\n"), format == "openmetrics")
        result = run("metrics", "--format", "xml")
        self.assertEqual((result.returncode, result.stderr), (2, 'headroom: metrics: --format is openmetrics or prometheus, not "xml"\n'))

    def test_labels_stay_distinct_and_quoted_whatever_a_program_publishes(self):
        program = self.train()
        (path,) = self.folder.iterdir()
        data = bytearray(path.read_bytes())
        program.kill()
        program.wait()
        # The file of a process that lives: this one. Program name, device names and allocator names are made equal and awkward.
        birth = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        struct.pack_into("<I", data, 16, os.getpid())
        struct.pack_into("<Q", data, 24, birth)
        at = 64
        data[at:at + 32] = b'a"b\\c}\n\x1b'.ljust(32, b"\0")
        counts = at + 32 + 128
        struct.pack_into("<II", data, counts, 3, 3)
        device, devices = 32 + 14 * 8 + 64 * 8, counts + 16
        for i in range(8):
            data[devices + i * device:devices + i * device + 32] = b"GPU:0".ljust(32, b"\0")
        allocator, allocators = 64 + 17 * 8, devices + 8 * device
        for i in range(16):
            data[allocators + i * allocator:allocators + i * allocator + 64] = b"bfc".ljust(32, b"\0") + b"GPU:0".ljust(32, b"\0")
        (self.folder / f"headroom-top-{os.getpid()}").write_bytes(data)
        found = samples(self.printed())  # which fails if a label set occurs twice
        mine = [dict(labels) for name, labels in found if name == "headroom_allocator_in_use_bytes" and ("process", str(os.getpid())) in labels]
        self.assertEqual(sorted(labels["allocator"] for labels in mine), ["bfc", "bfc#2", "bfc#3"])
        self.assertEqual({labels["program"] for labels in mine}, {'a\\"b\\\\c}??'})
        mine = [dict(labels) for name, labels in found if name == "headroom_device_in_use_bytes" and ("process", str(os.getpid())) in labels]
        self.assertEqual(sorted(labels["device"] for labels in mine), ["GPU:0", "GPU:0#2", "GPU:0#3"])


class Served(Published):
    def test_a_scraper_gets_the_format_that_it_asks_for(self):
        program = self.train()
        _, port = self.serve()
        status, headers, body = ask(port, GET + b"Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4\r\n\r\n")
        self.assertEqual((status, headers["content-type"]), (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"))
        self.assertTrue(body.endswith("# EOF\n"))
        self.assertIn(f'process="{program.pid}"', body)
        self.assertEqual(int(headers["content-length"]), len(body))
        status, headers, body = ask(port, GET + b"\r\n")
        self.assertEqual((status, headers["content-type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        self.assertIn("# TYPE headroom_device_allocations_total counter", body)
        status, _, body = ask(port, b"GET /metrics?a=b HTTP/1.0\n\n")
        self.assertEqual(status, 200)

    def test_anything_else_is_refused_with_a_reason(self):
        _, port = self.serve()
        cases = [(b"GET / HTTP/1.1\r\n\r\n", 404), (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", 404), (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
                 (b"GET /metrics HTTP/2.0\r\n\r\n", 505), (b"GET /metrics\r\n\r\n", 400), (b"\x16\x03\x01\x00\xa5\n\n", 400), (b"nonsense\n\n", 400),
                 (b"GET /metrics HTTP/1.1 \r\n\r\n", 400), (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 10000 + b"\r\n", 431), (b"A" * 100000, 431)]
        for request, status in cases:
            answer = ask(port, request)
            self.assertEqual(answer[0], status, request[:40])
            self.assertIn("the metrics are at GET /metrics", answer[2])
        self.assertEqual(ask(port, cases[2][0])[1]["allow"], "get")
        self.assertEqual(ask(port, GET + b"\r\n")[0], 200)

    def test_slow_and_silent_clients_delay_others_by_seconds_at_most(self):
        _, port = self.serve()
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        for client in silent[::2]:
            client.sendall(b"GET /met")
        begin = time.monotonic()
        self.assertEqual(ask(port, GET + b"\r\n")[0], 200)  # after the deadlines of those before it
        self.assertLess(time.monotonic() - begin, 50)  # three times 5 s, on a busy machine
        for client in silent:
            client.close()
        reset = socket.create_connection(("127.0.0.1", port))
        reset.sendall(GET + b"\r\n")
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        self.assertEqual(ask(port, GET + b"\r\n")[0], 200)

    def test_a_server_that_can_open_no_more_files_waits_without_computing(self):
        server, port = self.serve()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (18, hard))  # poll takes no more than that: the listener and 16 connections
        clients = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]
        self.wait_for(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) == 18)
        begin = self.computed(server)
        time.sleep(1)
        self.assertLess(self.computed(server) - begin, 0.06)  # it looks again ten times in a second
        for client in clients:
            client.close()
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (64, hard))
        self.assertEqual(ask(port, GET + b"\r\n")[0], 200)

    @staticmethod
    def computed(process):
        """Seconds of a processor."""
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def test_a_request_that_comes_byte_by_byte_is_answered(self):
        _, port = self.serve()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in GET + b"\r\n":
                client.send(bytes([byte]))
            self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 200 OK\r\n"))

    def test_signals_end_it(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            server, port = self.serve()
            server.send_signal(number)
            self.assertEqual(server.wait(timeout=60), 0)
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=60)

    def test_a_port_that_is_taken_is_an_error_with_a_remedy(self):
        _, port = self.serve()
        result = run("metrics", "--listen", f"127.0.0.1:{port}")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, f"headroom: metrics: port {port} of 127.0.0.1 is taken by another program; name another, such as "
                                        f"--listen 127.0.0.1:{port + 1 if port < 65535 else port - 1}, or --listen 0 for any free one\n")

    def test_addresses(self):
        for where, shown in (("127.0.0.1:0", "127.0.0.1"), ("localhost:0", "127.0.0.1"), (":0", "127.0.0.1"), ("[::1]:0", "[::1]")):
            if ":1]" in where and not Path("/proc/net/if_inet6").exists():
                continue
            server = self.start(*self.command(where))
            line = server.stderr.readline().decode()
            if "cannot listen on ::1" in line:
                continue  # a machine without IPv6
            self.assertIn(f"http://{shown}:", line)
        for wrong in ("12 bananas", "", "127.0.0.1:", "127.0.0.1:65536", "[::1", "[]:1", "a.example:9789", "1" * 200, "127.0.0.1:9789x"):
            result = run("metrics", "--listen", wrong)
            self.assertEqual(result.returncode, 2, wrong)
            self.assertIn("is not an address; name one such as 127.0.0.1:9789, or a port", result.stderr)
        result = run("metrics", "--listen", "192.0.2.1:9789")
        self.assertEqual(result.returncode, 2)
        self.assertIn("cannot listen on 192.0.2.1, port 9789: Cannot assign requested address", result.stderr)
        self.assertEqual(run("metrics", "--listen", "0", "--format", "prometheus").returncode, 2)

    def command(self, where):
        from serving import COMMAND
        return COMMAND, "metrics", "--listen", where


class Dashboard(Published):
    def test_every_query_names_metrics_that_exist(self):
        text = self.printed()
        names = {name + ("_total" if kind == "counter" else "") for name, kind in re.findall(r"^# TYPE (\S+) (gauge|counter)$", text, re.M)}
        board = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())
        queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        queries += [variable["query"] for variable in board["templating"]["list"]]
        named = set(re.findall(r"headroom_[a-z_]+", " ".join(queries)))
        self.assertGreater(len(named), 10)
        self.assertEqual(named - names, set())


if __name__ == "__main__":
    unittest.main()
