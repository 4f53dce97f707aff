#!/usr/bin/env python3
"""Prints the allocation log of an out-of-memory report:  oom_run --log | read_log.py (or oom_report --log)"""
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
