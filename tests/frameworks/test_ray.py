"""Ray Train: workers are recorded in the run of the driver, whose cluster may be older than itself."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.recorded import EXAMPLES, SCRIPTS, Recorded, only_summary, python
from tests.scenarios.preloaded import ENVIRONMENT
from tests.scenarios.scenario import SRC, traceml

RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",  # on a busy machine Ray gives up before torch is loaded
}
pytestmark = pytest.mark.framework


WORKER = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    loop = pickle.load(file)
print(loop({"steps": 12}))
"""
DRIVER = """
import cloudpickle, sys, torch
from traceml.integrations.ray import trace_workers

def train_loop(config):
    import torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(config["steps"]):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    return "trained"

with open("loop.pickle", "wb") as file:
    cloudpickle.dump(trace_workers(train_loop, run_name="r"), file)
sys.stdin.readline()
"""


def test_ray_worker_records_in_the_run_of_the_driver(tmp_path: Path) -> None:
    """The traced loop reaches a worker by value: it records if it can import TraceML, else it only trains."""
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "worker.py").write_text(WORKER)
    driver = subprocess.Popen(
        [sys.executable, "driver.py"],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "loop.pickle").exists() or not (tmp_path / "loop.pickle").stat().st_size:
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        without = tmp_path / "without"  # in place of a machine without TraceML, which may be installed here
        without.mkdir()
        (without / "traceml.py").write_text("raise ModuleNotFoundError(\"No module named 'traceml'\")\n")
        for path, recorded in ((SRC, True), (without, False)):
            done = python(tmp_path, "worker.py", "loop.pickle", PYTHONPATH=str(path))
            assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
            assert ("this Ray worker is not recorded: No module named 'traceml'" in done.stderr) != recorded
    finally:
        _, errors = driver.communicate("end\n", timeout=120)
    assert "Verdict" in errors
    assert only_summary(tmp_path)["run"]["steps"]["total"] == 12


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """A cluster on this machine that knows nothing of any run; what a driver needs to use it."""
    port, folder = free_port(), tempfile.mkdtemp(prefix="tr", dir="/tmp")  # sockets need a short path
    environment = {**RAY, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=3"]
    command += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={free_port()}"]
    command += ["--include-dashboard=false", f"--temp-dir={folder}"]
    output = Path(folder) / "output.txt"
    with output.open("w") as file:
        head = subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT, **environment},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 180
        while "Ray runtime started" not in output.read_text():
            assert head.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        yield {**environment, "RAY_ADDRESS": f"127.0.0.1:{port}"}
    finally:
        head.terminate()
        try:
            head.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def check(folder: Path) -> None:
    """Both workers have 20 steps in the only run, which ended well, with their data's naps as input."""
    found = only_summary(folder)
    assert (found["run"]["status"], found["run"]["world_size"]) == ("completed", 2)
    assert (found["run"]["steps"]["total"], found["run"]["ranks"]["lost"]) == (20, [])
    (run,) = (folder / "logs").iterdir()
    for rank in (0, 1):
        recorded = Recorded(folder, run.name, rank)
        assert recorded.column("samples") == [4] * 20
        assert recorded.ms("input") >= 20 * 4 * 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_of_an_older_cluster_are_recorded(tmp_path: Path, cluster: dict[str, str]) -> None:
    """With trace_workers in a plain driver; it can ask for the summary after `fit()`."""
    done = python(tmp_path, str(SCRIPTS / "ray_driver.py"), "trace", **cluster)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "steps so far: 20" in done.stdout
    assert "Verdict" in done.stderr
    check(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_of_an_older_cluster_need_no_code(tmp_path: Path, cluster: dict[str, str]) -> None:
    """`traceml run driver.py`, and nothing in the driver."""
    done = traceml("run", str(SCRIPTS / "ray_driver.py"), cwd=tmp_path, env=cluster)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_older_ray_train_says_what_it_needs(tmp_path: Path, cluster: dict[str, str]) -> None:
    """Without a change in the driver one line says which one is needed; with it, the workers are recorded."""
    old, driver = {**cluster, "RAY_TRAIN_V2_ENABLED": "0"}, str(SCRIPTS / "ray_driver.py")
    done = traceml("run", driver, cwd=tmp_path, env=old)
    assert (done.returncode, done.stderr.count("trace_workers(train_loop)")) == (0, 1), done.stderr[-3000:]
    again = tmp_path / "again"
    again.mkdir()
    done = traceml("run", driver, "trace", cwd=again, env=old)
    assert (done.returncode, done.stderr.count("trace_workers")) == (0, 0), done.stderr[-3000:]
    check(again)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ray_example_starts_its_own_cluster(tmp_path: Path) -> None:
    """`python ray_train.py`: 30 steps on each of two workers."""
    done = python(tmp_path, str(EXAMPLES / "ray_train.py"), **RAY)
    assert done.returncode == 0, done.stderr[-3000:]
    found = only_summary(tmp_path)
    assert (found["run"]["world_size"], found["run"]["steps"]["total"]) == (2, 30)
