"""Validates reports against docs/oom-report.schema.json.

    tests/oom/schema.py REPORT...         whole reports
    tests/oom/schema.py --log LOG...      logs alone

Supports the keywords that the schema uses, and refuses a schema with others, so that no rule is silently skipped. Needs no package,
so that it always runs; if the package jsonschema is installed, its result must be the same.
"""
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs/oom-report.schema.json").read_text())
LOG = {"$ref": "#/$defs/log", "$defs": SCHEMA["$defs"]}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
WORDS = {"$schema", "$id", "$defs", "title", "description"}

try:
    import jsonschema
except ImportError:
    jsonschema = None


def is_type(value, name):
    if name in ("integer", "number"):
        return not isinstance(value, bool) and isinstance(value, int if name == "integer" else (int, float))
    return isinstance(value, TYPES[name])


def problems(value, schema, root, path=""):
    """Yields a text for each violation in [value]."""
    for word, rule in schema.items():
        found = []
        if word == "$ref":
            target = root
            for part in rule.removeprefix("#/").split("/"):
                target = target[part]
            found = list(problems(value, target, root, path))
        elif word == "type":
            found = [] if is_type(value, rule) else [f"{path}: not of type {rule}"]
        elif word == "const":
            found = [] if value == rule and type(value) is type(rule) else [f"{path}: not {rule!r}"]
        elif word == "enum":
            found = [] if value in rule else [f"{path}: {value!r} is none of {rule}"]
        elif word == "anyOf":
            found = [] if any(not list(problems(value, each, root, path)) for each in rule) else [f"{path}: fits no alternative"]
        elif word in ("minimum", "maximum"):
            bad = is_type(value, "number") and (value < rule if word == "minimum" else value > rule)
            found = [f"{path}: {value} is outside {word} {rule}"] if bad else []
        elif word == "maxLength":
            found = [f"{path}: longer than {rule}"] if isinstance(value, str) and len(value) > rule else []
        elif word == "pattern":
            found = [f"{path}: {value!r} is not {rule}"] if isinstance(value, str) and not re.search(rule, value) else []
        elif word in ("minItems", "maxItems"):
            bad = isinstance(value, list) and (len(value) < rule if word == "minItems" else len(value) > rule)
            found = [f"{path}: {len(value)} entries, {word} is {rule}"] if bad else []
        elif word == "items":
            found = [p for i, each in enumerate(value) for p in problems(each, rule, root, f"{path}[{i}]")] if isinstance(value, list) else []
        elif word == "required":
            found = [f"{path}.{key}: missing" for key in rule if key not in value] if isinstance(value, dict) else []
        elif word == "properties":
            found = [p for key in rule if isinstance(value, dict) and key in value for p in problems(value[key], rule[key], root, f"{path}.{key}")]
        elif word == "additionalProperties":
            assert rule is False, "only false is known"
            found = [f"{path}.{key}: not in the schema" for key in value if key not in schema["properties"]] if isinstance(value, dict) else []
        else:
            assert word in WORDS, f"the schema uses {word}, which this validator does not know"
        yield from found


def validate(value, schema=SCHEMA):
    """The list of violations."""
    found = list(problems(value, schema, schema))
    if jsonschema:
        theirs = list(jsonschema.Draft202012Validator(schema).iter_errors(value))
        assert bool(theirs) == bool(found), f"jsonschema comes to another result: {found[:3]}, {[error.message for error in theirs[:3]]}"
    return found


def no_constants(name):
    raise ValueError(f"{name} is no JSON")


def load(text):
    """Parses strictly: no NaN, no duplicate keys."""

    def unique(pairs):
        made = dict(pairs)
        assert len(made) == len(pairs), f"a key is there twice: {[key for key, _ in pairs]}"
        return made

    return json.loads(text, parse_constant=no_constants, object_pairs_hook=unique)


def main(arguments):
    schema = SCHEMA
    if arguments and arguments[0] == "--log":
        schema, arguments = LOG, arguments[1:]
    failed = not arguments
    for path in arguments:
        for problem in validate(load(Path(path).read_bytes().decode("utf-8")), schema)[:10]:
            print(f"{path}: {problem}")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
