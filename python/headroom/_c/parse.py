"""C declarations as ctypes.

Only what the headers contain is understood: numbers, enums, handles (structs of one integer, which are passed like that integer), pointers, arrays and
structs. A declaration is parsed when it is first used, so that importing the package stays quick.
"""
import ctypes
import re

NUMBERS = {
    "bool": ctypes.c_bool, "char": ctypes.c_char, "unsigned char": ctypes.c_ubyte, "int": ctypes.c_int, "double": ctypes.c_double, "size_t": ctypes.c_size_t,
    "uint8_t": ctypes.c_uint8, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
    # typedefs and enums
    "hr_name": ctypes.c_uint32, "hr_shape": ctypes.c_uint32, "hr_stream": ctypes.c_uint32, "hr_stack": ctypes.c_uint32, "hr_status": ctypes.c_int,
    "hr_dtype": ctypes.c_int, "hr_reuse": ctypes.c_int, "hr_run_trace": ctypes.c_int, "hr_initializer_kind": ctypes.c_int, "hr_optimizer_kind": ctypes.c_int,
    "hr_oom_log_address": ctypes.c_int, "hr_holder_kind": ctypes.c_int, "hr_profile_format": ctypes.c_int, "hr_verdict_kind": ctypes.c_int,
    "hr_tier": ctypes.c_int,
    "hr_oom_callback": ctypes.c_void_p, "hr_profile_writer": ctypes.c_void_p,
    # handles
    "hr_device": ctypes.c_uint32, "hr_allocator": ctypes.c_uint64, "hr_oom_report": ctypes.c_uint64, "hr_value": ctypes.c_uint64,
    "hr_variable": ctypes.c_uint64, "hr_graph": ctypes.c_uint64, "hr_session": ctypes.c_uint64, "hr_tensor": ctypes.c_uint64,
}
CONSTANTS = {"HR_PROFILER_STEPS_MAX": 64}
DECLARATION = re.compile(r"((?:const |unsigned |struct )*\w+)\s*(.*)", re.S)


def type_of(base, declarator, structs):
    """The ctypes type of [declarator], such as "*name", of the type [base], such as "const char". None for void."""
    if "*" in declarator:
        return ctypes.c_char_p if base in ("char", "const char") and declarator.count("*") == 1 else ctypes.c_void_p
    base = re.sub(r"^(const|struct) ", "", base)
    if base == "void":
        return None
    return NUMBERS[base] if base in NUMBERS else structs(base)


def declared(text, structs):
    """The type of "const char *name"; an array is a pointer."""
    base, declarator = DECLARATION.fullmatch(text.strip()).groups()
    return ctypes.c_void_p if "[" in declarator else type_of(base, declarator, structs)


def arguments(text, structs):
    return [declared(each, structs) for each in text.split(",") if each.strip() not in ("", "void")]


def prototype(text, structs):
    """(result, arguments) of a prototype."""
    match = re.fullmatch(r"(.*?)hr_\w+\((.*)\)", text, re.S)
    return declared(match.group(1), structs), arguments(match.group(2), structs)


def callback(text, structs):
    """The ctypes type of a pointer to a function: "bool (*)(void *context, double part)"."""
    match = re.fullmatch(r"(.*?)\(\*\w*\)\((.*)\)", text, re.S)
    return ctypes.CFUNCTYPE(declared(match.group(1), structs), *arguments(match.group(2), structs))


def length(text, fields):
    """Of an array: a number, a constant, or such as "128 - sizeof(hr_oom_options)"."""
    rest = re.fullmatch(r"(\d+) - sizeof\((\w+)\)", text)
    if rest:
        return int(rest.group(1)) - ctypes.sizeof(next(kind for _, kind in fields if kind.__name__ == rest.group(2)))
    return CONSTANTS[text] if text in CONSTANTS else int(text)


def struct(name, body, structs):
    """A ctypes.Structure with the fields of [body]. A pointer to a function is a c_void_p."""
    fields = []
    for declaration in filter(str.strip, body.split(";")):
        function = re.search(r"\(\*(\w+)\)", declaration)
        if function:
            fields.append((function.group(1), ctypes.c_void_p))
            continue
        base, declarators = DECLARATION.fullmatch(declaration.strip()).groups()
        for declarator in declarators.split(","):
            field, array = re.search(r"(\w+)\s*(?:\[(.*)\])?\s*$", declarator).groups()
            kind = type_of(base, declarator, structs)
            fields.append((field, kind * length(array, fields) if array else kind))
    return type(name, (ctypes.Structure,), {"_fields_": fields, "__doc__": f"{name} of the headers."})
