"""Real summaries, mutated at any depth: compare and view give an answer or one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.compare.making import DATA, RELEASED
from tests.fuzz import examples
from traceml.cli.main import main
from traceml.schema.comparison import VERDICTS

SAMPLES = {
    path.stem: json.loads(path.read_text())
    for path in (DATA / "slow.json", DATA / "fast.json", *sorted(RELEASED.glob("*.json")))
}
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(10**30), max_value=10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found += places(inner, (*path, key))
    return found


PLACES = {name: places(data) for name, data in SAMPLES.items()}


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A real summary with a few values changed or removed; some are cut off or damaged as bytes."""
    name = draw(st.sampled_from(sorted(SAMPLES)))
    data = copy.deepcopy(SAMPLES[name])
    for _ in range(draw(st.integers(1, 4))):
        *way, last = draw(st.sampled_from(PLACES[name]))
        spot = data
        try:
            for key in way:
                spot = spot[key]
            if draw(st.booleans()):
                spot[last] = draw(VALUES)
            else:
                del spot[last]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed this place
    written = json.dumps(data, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    harm = draw(st.integers(0, 9))
    if harm == 0:
        return written[: draw(st.integers(0, len(written)))]
    if harm == 1:
        at = draw(st.integers(0, len(written) - 1))
        return written[:at] + draw(st.binary(min_size=1, max_size=4)) + written[at + 1 :]
    return written


@examples(150, suppress_health_check=list(HealthCheck))
@given(content=mutated(), other=st.sampled_from(["slow.json", "released/v0.5.0_ddp2_healthy.json"]))
def test_compare_gives_an_answer_or_one_line(
    content: bytes,
    other: str,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 0 with a known verdict and both files, or exit 2 with one line and no file; no traceback."""
    folder = tmp_path_factory.mktemp("fuzz")
    path, base = folder / "changed.json", folder / "out" / "answer"
    path.write_bytes(content)
    code = main(["compare", str(path), str(DATA / other), "--output", str(base), "--format", "markdown"])
    shown = capsys.readouterr()
    if code == 0:
        answer = json.loads(Path(f"{base}.json").read_text())
        assert answer["verdict"] in VERDICTS
        text = Path(f"{base}.txt").read_text()
        assert max(map(len, text.splitlines())) <= 100
        assert "None" not in text
    else:
        assert code == 2
        assert shown.err.count("\n") == 1
        assert shown.out == ""
        assert not base.parent.exists()


@examples(100, suppress_health_check=list(HealthCheck))
@given(content=mutated())
def test_view_gives_an_answer_or_one_line(
    content: bytes, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """`traceml view` of such a file prints a text or one line, never a traceback."""
    path = tmp_path_factory.mktemp("fuzz") / "changed.json"
    path.write_bytes(content)
    assert main(["view", str(path)]) in (0, 2)
    capsys.readouterr()
