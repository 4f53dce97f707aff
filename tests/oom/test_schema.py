"""docs/oom-report.schema.json: it constrains everything, and agrees with the tables of the header. The reports are in
tests/oom/reports."""
import copy
import json
import re
import unittest

from schema import LOG, ROOT, SCHEMA, jsonschema, load, validate

REPORTS = ROOT / "tests/oom/reports"
GOOD = ["training", "nothing", "names"]
OPTIONAL = {"address", "recompute_bytes", "recompute_ns", "rank", "local", "other_ranks", "other_ranks_left_out"}  # left out where they do not apply; everything else is always there
HEADER = (ROOT / "include/headroom.h").read_text()


def table(name):
    """A macro with all its lines."""
    return re.search(rf"#define {name}\(X\)(.*\\\n)*.*", HEADER).group(0)


def report(name):
    return load((REPORTS / f"{name}.json").read_text())


def objects(value, path=()):
    """Yields the path to every object in [value]."""
    if isinstance(value, dict):
        yield path
        for key, each in value.items():
            yield from objects(each, path + (key,))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from objects(each, path + (i,))


def at(value, path):
    for step in path:
        value = value[step]
    return value


class Schema(unittest.TestCase):
    def test_is_a_schema(self):
        if jsonschema:
            jsonschema.Draft202012Validator.check_schema(SCHEMA)
        for path in objects(SCHEMA):
            each = at(SCHEMA, path)
            if each.get("type") == "object":
                self.assertIs(each.get("additionalProperties"), False, path)
                self.assertLessEqual(set(each["required"]), set(each["properties"]))
                self.assertLessEqual(set(each["properties"]) - set(each["required"]), OPTIONAL, path)

    def test_agrees_with_the_tables(self):
        names = re.findall(r'X\((\w+), "', table("HR_STATS_TABLE"))
        self.assertGreater(len(names), 40)
        self.assertEqual(list(SCHEMA["properties"]["stats"]["properties"]), names + ["fragmentation"])
        dtypes = re.findall(r'X\(\w+, \d+, \d+, "([^"]+)"\)', table("HR_DTYPE_TABLE"))
        self.assertEqual(SCHEMA["$defs"]["dtype"]["enum"], dtypes)

    def test_good_reports_are_good(self):
        for name in GOOD:
            self.assertEqual(validate(report(name)), [], name)
            self.assertEqual(validate(report(name)["log"], LOG), [], name)

    def test_nothing_may_be_missing_or_added(self):
        good = report("training")
        good["regions"][0]["runs"] = good["regions"][0]["runs"][:2]
        good["log"] = good["log"][-2:]
        del good["largest"][2:], good["sizes"][2:], good["regions"][1:]
        for kind in good["holders"].values():
            del kind["top"][1:]
        tried = 0
        for path in list(objects(good)):
            for key in at(good, path):
                bad = copy.deepcopy(good)
                del at(bad, path)[key]
                self.assertTrue(validate(bad), f"{path} without {key}")
                tried += 1
            bad = copy.deepcopy(good)
            at(bad, path)["surplus"] = 1
            self.assertTrue(validate(bad), f"{path} with a surplus key")
        self.assertGreater(tried, 150)

    def test_values_are_pinned(self):
        def changed(path, value):
            bad = report("training")
            at(bad, path[:-1])[path[-1]] = value
            return validate(bad)

        for path, value in [(["version"], 2), (["version"], 1.5), (["format"], "x"), (["time"], "2025-01-30 09:12:44"), (["process"], 1 << 32),
                            (["process"], -1), (["request", "bytes"], "1"), (["request", "shape"], [1, -1]), (["request", "shape"], "[1]"),
                            (["request", "shape"], [1] * 9), (["request", "dtype"], "float"), (["request", "op_name"], None),
                            (["request", "op_name"], "x" * 1025), (["verdict", "kind"], "maybe"), (["allocator", "stitch"], 1),
                            (["stats", "fragmentation"], 1.5), (["log"], []), (["log", 0, "action"], "malloc"), (["log", 0, "address"], 4096),
                            (["log", 0, "address"], "0xFFFFFFFFFFFFFFFFF"), (["regions", 0, "runs", 0, "kind"], "none"), (["largest"], {})]:
            self.assertTrue(changed(path, value), (path, value))
        self.assertEqual(changed(["request", "shape"], None), [])
        self.assertEqual(changed(["log", 0, "address"], "0x7f12"), [])


class Log(unittest.TestCase):
    def test_the_loop_of_the_document_works(self):
        """The required use: json.loads, then these keys of each entry."""
        allocation_log = json.dumps(report("training")["log"])
        lines = []
        for allocation in json.loads(allocation_log):
            lines.append(f"Tensor Shape: {allocation['shape']}, Dtype: {allocation['dtype']}, "
                         f"Operation: {allocation['op_name']}, Time: {allocation['time']}")
        self.assertEqual(len(lines), 101)
        self.assertEqual(lines[-1], "Tensor Shape: [8, 1024, 50257], Dtype: float32, Operation: logits/MatMul, Time: 2025-01-30T09:12:44.031337Z")

    def test_the_failing_request_is_the_last(self):
        for name in GOOD:
            log = report(name)["log"]
            self.assertEqual([entry["action"] == "failed" for entry in log], [False] * (len(log) - 1) + [True])
            self.assertEqual(log[-1]["age_us"], 0)
            self.assertEqual(log[-1]["bytes"], report(name)["request"]["bytes"])

    def test_ages_are_times_before_the_failure(self):
        for name in GOOD:
            whole = report(name)
            for entry in whole["log"]:
                self.assertAlmostEqual(entry["age_us"], (whole["time_ns"] - entry["time_ns"]) / 1000, places=2)


if __name__ == "__main__":
    unittest.main()
