"""Faults for the scenario scripts: sleeps that note how long they really took.

A sleep of 5 ms takes 6 when the machine is busy. What TraceML must find is the time that passed, so
each nap writes both numbers, and the tests hold TraceML against the second.
"""

import contextlib
import json
import os
import time


def nap(ms, name):
    """Sleep `ms`, if any, and append what was asked and what it took to naps.jsonl in this folder."""
    if not ms:
        return
    began = time.perf_counter()
    time.sleep(ms / 1000)
    note(name, ms, (time.perf_counter() - began) * 1000)


def burn(ms, name):
    """Keep the CPU busy for `ms`; noted like a nap."""
    began = time.perf_counter()
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass
    note(name, ms, (time.perf_counter() - began) * 1000)


@contextlib.contextmanager
def clocked(name):
    """Note how long this block took; nothing was asked of it."""
    began = time.perf_counter()
    yield
    note(name, 0, (time.perf_counter() - began) * 1000)


def note(name, asked_ms, took_ms):
    """One line of naps.jsonl."""
    rank = int(os.environ.get("RANK", "0"))
    line = json.dumps({"name": name, "rank": rank, "asked": asked_ms, "took": took_ms})
    file = os.open("naps.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line.encode() + b"\n")  # one write: the lines of several processes do not mix
    os.close(file)
