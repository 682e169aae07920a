"""Deep mode: from sampled steps to one row per layer, on the median rank, with the rank that stands out."""

from collections.abc import Sequence
from statistics import median_low
from typing import Final

import numpy as np

from traceml.analyze.window import Floats
from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.recorded import LayerSample, RankRecording
from traceml.schema.summary import Layer, Layers, RankValue

MOST_LAYERS: Final = 200
MOST_RANKS: Final = 64
"""With more ranks than this, an even selection of them is used."""
NEW_MODEL_SAMPLES: Final = 3
"""If this many samples have no layer of the samples before, the model was replaced."""
DIFFERS_FACTOR: Final = 1.5
DIFFERS_SHARE: Final = 0.05
FEWEST_SAMPLES: Final = 4
"""A rank is named for a layer if it has at least this many samples and takes this many times as long
there."""
MOST_NAMED: Final = 3
TIMES: Final = tuple(name for name in c.LAYER_COLUMNS if name != "calls" and "bytes" not in name)

Key = tuple[str, str, int, int]
"""Path, type, bytes of its parameters, and with the layers below."""


def layers_section(ranks: dict[int, RankRecording], step_ms: float | None) -> Layers | None:
    """`summary.layers`; None if no step was sampled."""
    sampled = {rank: r.layers for rank, r in ranks.items() if r.layers}
    if not sampled:
        return None
    chosen = list(sampled)[:: -(-len(sampled) // MOST_RANKS)]
    found = [_RankLayers(sampled[rank]) for rank in chosen]
    keys = list(dict.fromkeys(key for one in found for key in one.keys))
    columns = [one.columns(keys) for one in found]
    of_ranks = {name: np.stack([one[name] for one in columns]) for name in c.LAYER_COLUMNS}
    middle = {name: _median(values) for name, values in of_ranks.items()}
    own = of_ranks["forward"] + of_ranks["backward"] + of_ranks["recompute"]
    reads_saved = all(sample.reads_saved for one in found for sample in one.samples)
    outside = median_low(one.outside_ns for one in found)
    kept = median_low(max(s.outside_bytes for s in one.samples) for one in found) if reads_saved else None
    hidden = {key: size for one in found for key, size in one.hidden.items()}
    forward, recompute = float(middle["forward"].sum()), float(middle["recompute"].sum())
    backward = float(middle["backward"].sum()) + recompute + outside
    worst = np.nanargmax(own, axis=0)
    rows = []
    for at, key in enumerate(keys):
        values = {name: float(each[at]) for name, each in middle.items()}
        longest_on = RankValue(float(own[worst[at], at]) / 1e6, chosen[worst[at]])
        rows.append(_layer(key, values, forward, backward, longest_on, hidden.get(key, 0), reads_saved))
    rows.sort(key=lambda row: -(row.share or 0.0))
    longest = max(found, key=lambda one: len(one.samples))
    first, last = longest.samples[0], longest.samples[-1]
    own_ms = float(np.mean([sample.own_ns for sample in longest.samples])) / 1e6
    return Layers(
        samples=len(longest.samples),
        every=last.every,
        start_step=first.step,
        end_step=last.step,
        clock=last.clock,
        ranks=chosen,
        forward_ms=forward / 1e6,
        backward_ms=backward / 1e6,
        recompute_ms=recompute / 1e6,
        outside_ms=outside / 1e6,
        outside_share=outside / backward if backward else None,
        parameter_bytes=sum(row.parameter_bytes for row in rows),
        gradient_bytes=sum(row.gradient_bytes for row in rows),
        activation_bytes=None if kept is None else sum(row.activation_bytes or 0.0 for row in rows) + kept,
        outside_bytes=kept,
        cost_share=own_ms / (last.every * step_ms) if step_ms and last.every else None,
        count=len(rows),
        notes=_notes(rows, longest, found, forward + backward, reads_saved),
        layers=rows[:MOST_LAYERS],
    )


class _RankLayers:
    """The samples of one rank, without those of a model that was replaced."""

    def __init__(self, samples: Sequence[LayerSample]) -> None:
        known: dict[int, list[Key]] = {}  # samples of one table share its lists
        for s in samples:
            if id(s.paths) not in known:
                parts = (s.paths, s.types, s.parameter_bytes, s.parameter_bytes_total)
                known[id(s.paths)] = list(zip(*parts, strict=True))
        every = [known[id(s.paths)] for s in samples]
        self.before = begin = _replaced(every)
        self.samples, self._every = samples[begin:], every[begin:]
        # Layers that the newer half of the samples lacks are gone.
        newer = {key for keys in self._every[len(self._every) // 2 :] for key in keys}
        self.keys = [key for key in dict.fromkeys(k for keys in self._every for k in keys) if key in newer]
        self.outside_ns = float(_steady(np.array([[s.outside_ns] for s in self.samples], dtype=float))[0])
        self.hidden = {
            key: inside
            for sample, keys in zip(self.samples, self._every, strict=True)
            for key, inside in zip(keys, sample.hidden, strict=True)
            if inside
        }

    def columns(self, keys: Sequence[Key]) -> dict[str, Floats]:
        """For each column of the catalogue, what these layers take per step: the mean of the middle half of
        the samples that have the layer, times how often they have it; of memory, the largest. NaN for a layer
        that this rank does not have."""
        mine = set(self.keys)
        places = {key: at for at, key in enumerate(keys) if key in mine}
        tables = {id(each): np.array([places.get(key, -1) for key in each]) for each in self._every}
        found = {}
        for name in c.LAYER_COLUMNS:
            values = np.full((len(self.samples), len(keys)), np.nan)
            for at, (sample, each) in enumerate(zip(self.samples, self._every, strict=True)):
                where = tables[id(each)]
                column = np.asarray(sample.columns.get(name, np.zeros(len(each))), dtype=float)
                values[at, where[where >= 0]] = column[where >= 0]
            if "bytes" in name:
                found[name] = np.fmax.reduce(values, axis=0)
                continue
            is_there = ~np.isnan(values)
            since_first = len(is_there) - is_there.argmax(axis=0)
            use = np.where(is_there.any(axis=0), is_there.sum(axis=0) / since_first, np.nan)
            found[name] = _steady(values) * use
        return found


def _replaced(every: list[list[Key]]) -> int:
    """The sample with which the newest model begins: none of its layers was there before."""
    after: set[Key] = set()
    befores: list[set[Key]] = [set()]
    for keys in every:
        befores.append(befores[-1] if befores[-1].issuperset(keys) else befores[-1].union(keys))
    for at in range(len(every) - 1, 0, -1):
        after.update(every[at])
        if len(every) - at >= NEW_MODEL_SAMPLES and after.isdisjoint(befores[at]):
            return at
    return 0


def _steady(values: Floats) -> Floats:
    """For each column the mean of the middle half: a pause that hit one sample does not count."""
    ordered = np.sort(values, axis=0)  # NaN last
    counts = (~np.isnan(values)).sum(axis=0)
    cut, at = counts // 4, np.arange(len(values))[:, None]
    used = (at >= cut) & (at < counts - cut)
    means: Floats = np.where(used, ordered, 0.0).sum(axis=0) / np.maximum(used.sum(axis=0), 1)
    return means


def _median(values: Floats) -> Floats:
    """The median rank's; of an even number, the lower one."""
    counts = (~np.isnan(values)).sum(axis=0)
    middle: Floats = np.sort(values, axis=0)[(counts - 1) // 2, np.arange(values.shape[1])]
    return middle


def _layer(
    key: Key,
    v: dict[str, float],
    forward: float,
    backward: float,
    worst: RankValue,
    hidden: int,
    reads_saved: bool,
) -> Layer:
    path, kind, *parameters = key
    whole = forward + backward
    return Layer(
        path,
        kind,
        v["calls"],
        **{f"{name}_ms": v[name] / 1e6 for name in TIMES},
        forward_share=v["forward"] / forward if forward else None,
        backward_share=v["backward"] / backward if backward else None,
        share=(v["forward"] + v["backward"] + v["recompute"]) / whole if whole else None,
        parameter_bytes=float(parameters[0]),
        parameter_total_bytes=float(parameters[1]),
        gradient_bytes=v["gradient_bytes"],
        activation_bytes=v["activation_bytes"] if reads_saved else None,
        activation_total_bytes=v["activation_bytes_total"] if reads_saved else None,
        hidden=hidden,
        worst=worst,
    )


def _notes(
    rows: list[Layer], longest: _RankLayers, ranks: list[_RankLayers], whole_ns: float, reads_saved: bool
) -> list[str]:
    """Remarks that the table does not show."""
    notes = []
    if longest.before:
        notes.append(f"The model was replaced: this is the one of step {longest.samples[0].step} and later.")
    notes += [
        f"{row.path} is compiled: what is inside it ({row.hidden} modules) runs as one and is not told apart."
        for row in rows
        if row.hidden
    ]
    again = sum(row.recompute_ms for row in rows)
    if again:
        share = fmt.share(again * 1e6 / whole_ns)
        notes.append(
            f"Checkpointed layers are computed again in backward: {fmt.ms(again)} ({share} of both passes)."
        )
    if not reads_saved:
        notes.append("This version of torch does not show what layers keep for backward: no activations.")
    if len(ranks) < 2 or any(len(r.samples) < FEWEST_SAMPLES for r in ranks):
        return notes
    longer = []
    for row in rows:
        usual, worst = row.forward_ms + row.backward_ms + row.recompute_ms, row.worst.value or 0.0
        if worst > DIFFERS_FACTOR * usual and (worst - usual) * 1e6 > DIFFERS_SHARE * whole_ns:
            longer.append((worst - usual, row, usual))
    longer.sort(key=lambda one: -one[0])
    return notes + [
        f"{row.path} takes {fmt.ms(row.worst.value)} on {fmt.rank(row.worst.rank)}, "
        f"{fmt.ms(usual)} on the median rank."
        for _, row, usual in longer[:MOST_NAMED]
    ]
