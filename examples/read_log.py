#!/usr/bin/env python3
"""Reads the log of allocations that an out-of-memory report carries:  oom_run --log | read_log.py (or oom_report --log)"""
import json
import sys

allocation_log = sys.stdin.read()

try:
    allocation_data = json.loads(allocation_log)
    for allocation in allocation_data:
        print(f"Tensor Shape: {allocation['shape']}, Dtype: {allocation['dtype']}, "
              f"Operation: {allocation['op_name']}, Time: {allocation['time']}")
except json.JSONDecodeError as e:
    sys.exit(f"Error decoding allocation log: {e}")
