#!/usr/bin/env python3
"""Debian's Prometheus scrapes `headroom metrics --listen`, answers queries with our numbers, and runs every query of the dashboard; promtool finds nothing
to complain about. Skipped where prometheus is not installed (apt-get install prometheus; tools/test-fleet.sh installs it)."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from serving import Published, run  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = os.environ.get("HEADROOM_REQUIRE_FLEET", "0") != "0"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@unittest.skipUnless(REQUIRED or shutil.which("promtool"), "promtool is not installed (Debian: prometheus)")
class Promtool(Published):
    def test_it_finds_nothing_to_complain_about(self):
        self.train(RANK="0", WORLD_SIZE="2")
        for text in (self.printed("--format", "prometheus"), self.printed()):
            checked = subprocess.run(["promtool", "check", "metrics"], input=text.replace("# EOF\n", ""), capture_output=True, text=True, timeout=60)
            if "# UNIT" not in text:  # promtool reads the older format: in OpenMetrics a counter has another name in its description
                self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))


@unittest.skipUnless(REQUIRED or shutil.which("prometheus"), "prometheus is not installed")
class Scraped(Published):
    def setUp(self):
        super().setUp()
        self.programs = [self.train(RANK=str(rank), WORLD_SIZE="2", MASTER_PORT="29500") for rank in range(2)]
        _, self.port = self.serve()
        self.web = free_port()
        (self.folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: headroom, static_configs: [{{targets: ['127.0.0.1:{self.port}']}}]}}]\n")
        log = open(self.folder / "log", "wb")
        self.addCleanup(log.close)
        prometheus = subprocess.Popen(["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                                       f"--web.listen-address=127.0.0.1:{self.web}", "--log.level=warn"], stdout=log, stderr=log)
        self.addCleanup(lambda: (prometheus.kill(), prometheus.wait()))

    def query(self, text):
        url = f"http://127.0.0.1:{self.web}/api/v1/query?" + urllib.parse.urlencode({"query": text})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                answer = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return []  # it is starting
            self.fail(f"{text}: {error.read().decode()}")
        except OSError:
            return []  # it is starting
        self.assertEqual(answer["status"], "success")
        return answer["data"]["result"]

    def test_a_query_has_our_number_and_the_dashboards_queries_have_results(self):
        self.wait_for(lambda: self.query('up{job="headroom"} == 1'))
        for program in self.programs:
            program.send_signal(signal.SIGSTOP)
            self.addCleanup(program.send_signal, signal.SIGCONT)
        for rank, program in enumerate(self.programs):
            top = json.loads(run("top", "--once", "--json", env=self.env).stdout)
            (shown,) = [p for p in top["programs"] if p["process"] == program.pid]
            device = shown["devices"][0]
            text = f'headroom_device_allocations_total{{process="{program.pid}",program="profile",rank="{rank}",device="{device["name"]}"}}'
            self.wait_for(lambda: [float(r["value"][1]) for r in self.query(text)] == [device["num_allocs"]])
        # The format that it asked for is OpenMetrics: types and units are known.
        url = f"http://127.0.0.1:{self.web}/api/v1/metadata?metric=headroom_device_in_use_bytes"
        with urllib.request.urlopen(url, timeout=10) as answer:
            (described,) = json.load(answer)["data"]["headroom_device_in_use_bytes"]
        self.assertEqual((described["type"], described["unit"]), ("gauge", "bytes"))
        board = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$program", ".*").replace("$rank", ".*")
                if "limit" in query:
                    self.query(query)  # valid; the example has no limit
                else:
                    self.wait_for(lambda: self.query(query))


if __name__ == "__main__":
    unittest.main()
