#!/usr/bin/env python3
"""The report on each generated situation of test_oom_verdict.c matches the schema, and so does its log."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import schema  # noqa: E402

LEAST = 200


def main():
    program = Path(os.environ["HEADROOM_COMMAND"]).parent / "tests/oom/test_oom_verdict"
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([program], env={**os.environ, "HR_REPORTS_TO": folder, "HR_TEST_SCALE": "1"}, capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stdout + run.stderr)
        reports = sorted(Path(folder).iterdir())
        verdicts = {}
        for path in reports:
            report = json.loads(path.read_text())
            wrong = list(schema.problems(report, schema.SCHEMA, schema.SCHEMA))
            if wrong:
                sys.exit(f"{path.name}: " + "\n".join(wrong))
            verdicts[report["verdict"]["kind"]] = verdicts.get(report["verdict"]["kind"], 0) + 1
    print(f"{len(reports)} reports: {verdicts}")
    if len(reports) < LEAST:
        sys.exit(f"only {len(reports)} reports, not {LEAST}")


main()
