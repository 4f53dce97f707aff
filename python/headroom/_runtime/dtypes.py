"""Dtypes of tensors."""
import sys


class DType:
    """float32 and the like. Equal to its name and to NumPy's dtype of that name."""

    def __init__(self, name, number, size, code, kind):
        self.name = name
        self.number = number    # hr_dtype
        self.size = size        # bytes of an element
        self.code = code        # of the array module; "" = none
        self.kind = kind        # "float", "int" or "bool"

    @property
    def is_floating(self):
        """Whether it is one of float32, float64 and bfloat16."""
        return self.kind == "float"

    @property
    def is_integer(self):
        """Whether it is one of int32, int64 and uint8."""
        return self.kind == "int"

    @property
    def as_numpy_dtype(self):
        """NumPy's type. bfloat16 has none there: arrays of it are float32."""
        import numpy
        return numpy.dtype("float32" if self.name == "bfloat16" else self.name).type

    def __repr__(self):
        return f"headroom.{self.name}"

    def __eq__(self, other):
        try:
            return self is as_dtype(other)
        except (TypeError, ValueError):
            return False

    def __hash__(self):
        return hash(self.name)


float32 = DType("float32", 1, 4, "f", "float")
float64 = DType("float64", 2, 8, "d", "float")
int32 = DType("int32", 3, 4, "i", "int")
int64 = DType("int64", 4, 8, "q", "int")
uint8 = DType("uint8", 5, 1, "B", "int")
bool_ = DType("bool", 6, 1, "B", "bool")
bfloat16 = DType("bfloat16", 7, 2, "", "float")
ALL = (float32, float64, int32, int64, uint8, bool_, bfloat16)

BY_NAME = {each.name: each for each in ALL}
BY_NUMBER = {each.number: each for each in ALL}
BY_TYPE = {float: float32, int: int32, bool: bool_}


def as_dtype(value):
    """Of a DType, a name, a NumPy dtype, or one of float, int, bool."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        found = BY_NAME.get(value)
    elif isinstance(value, type) and value in BY_TYPE:
        found = BY_TYPE[value]
    else:
        numpy = sys.modules.get("numpy")
        try:
            found = BY_NAME.get(numpy.dtype(value).name) if numpy and value is not None else None
        except TypeError:
            found = None
    if found is None:
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"dtype is {value!r}; give one of {', '.join(BY_NAME)}, such as headroom.float32")
    return found
