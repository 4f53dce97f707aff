"""Sizes as people write them: "26GB", "1.5 GiB", 4096."""
import re

UNITS = {"": 1, "B": 1}
for power, letter in enumerate("KMGTP", start=1):
    UNITS[letter] = UNITS[letter + "IB"] = 1024 ** power
    UNITS[letter + "B"] = 1000 ** power

PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")


def parse_size(size):
    """Bytes. An int is returned as it is. Units are KB, MB, GB, TB, PB (powers of 1000) and KiB, K, MiB, M, ... (powers of 1024)."""
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"a size is an int or a text such as '26GB', not {size!r}")
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"a size cannot be negative: {size}")
        return size
    match = PATTERN.fullmatch(size)
    unit = UNITS.get(match.group(2).upper()) if match else None
    if unit is None:
        raise ValueError(f"not a size: {size!r}. Write for example '26GB', '512MiB' or a number of bytes")
    number = match.group(1)
    return int(number) * unit if number.isdigit() else int(float(number) * unit)


def argument_size(value, argument, example):
    """parse_size, with errors that name the argument and show a good value."""
    problem = None
    try:
        return parse_size(value)
    except (TypeError, ValueError) as error:
        problem = type(error)
    raise problem(f"{argument} is {value!r}; give a number of bytes, or a size such as {example!r}")


def format_size(size):
    """"12.5 MiB"."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
