"""The C declarations that the package uses, as ctypes: functions.py and structs.py have them as text of the headers, which parse.py reads."""
