"""Deep mode: from sampled steps to one row per layer, on the median rank, with the rank that stands out."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.recorded import LayerSample, RankRecording
from traceml.schema.summary import Layer, Layers, RankValue

MOST_LAYERS: Final = 200
MOST_RANKS: Final = 64
"""Of more ranks, an even selection is looked at."""
NEW_MODEL_SAMPLES: Final = 3
"""So many samples without any layer of the ones before: the model was replaced."""
DIFFERS_FACTOR: Final = 1.5
DIFFERS_SHARE: Final = 0.05
FEWEST_SAMPLES: Final = 4
"""A rank is named for a layer from so many samples on, if it takes so much longer there."""
MOST_NAMED: Final = 3

Key = tuple[str, str, int, int]
"""Path, type, bytes of its parameters, and with the layers below."""
Floats = NDArray[np.float64]
Columns = dict[str, Floats]
"""For each of `catalog.LAYER_COLUMNS`, a value for each layer; NaN where it is not there."""


def layers_section(ranks: dict[int, RankRecording], step_ms: float | None) -> Layers | None:
    """`summary.layers`; None if no step was sampled."""
    sampled = {rank: r.layers for rank, r in ranks.items() if r.layers}
    chosen = list(sampled)[:: -(-len(sampled) // MOST_RANKS) or 1]
    per_rank = {rank: _RankLayers(sampled[rank]) for rank in chosen}
    if not per_rank:
        return None
    keys = list(dict.fromkeys(key for found in per_rank.values() for key in found.keys))
    of_ranks = _aligned(list(per_rank.values()), keys)
    middle = {name: _median(values) for name, values in of_ranks.items()}
    own = of_ranks["forward"] + of_ranks["backward"] + of_ranks["recompute"]
    reads_saved = all(sample.reads_saved for found in per_rank.values() for sample in found.samples)
    outside = _lower([found.outside_ns for found in per_rank.values()])
    kept = _lower([max(s.outside_bytes for s in found.samples) for found in per_rank.values()])
    hidden = {key: size for found in per_rank.values() for key, size in found.hidden.items()}
    forward, recompute = float(middle["forward"].sum()), float(middle["recompute"].sum())
    backward = float(middle["backward"].sum()) + recompute + outside
    worst = np.nanargmax(own, axis=0)
    rows = [
        _layer(
            key,
            {name: float(values[at]) for name, values in middle.items()},
            (forward, backward),
            RankValue(float(own[worst[at], at]) / 1e6, chosen[worst[at]]),
            hidden.get(key, 0),
            reads_saved,
        )
        for at, key in enumerate(keys)
    ]
    rows.sort(key=lambda row: -(row.share or 0.0))
    longest = max(per_rank.values(), key=lambda found: len(found.samples))
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
        activation_bytes=sum(row.activation_bytes or 0.0 for row in rows) + kept if reads_saved else None,
        outside_bytes=kept if reads_saved else None,
        cost_share=own_ms / (last.every * step_ms) if step_ms and last.every else None,
        count=len(rows),
        notes=_notes(rows, longest, per_rank, forward + backward, reads_saved),
        layers=rows[:MOST_LAYERS],
    )


class _RankLayers:
    """The samples of one rank, without those of a model that was replaced."""

    def __init__(self, samples: Sequence[LayerSample]) -> None:
        known: dict[int, list[Key]] = {}  # samples of one table share its lists
        for s in samples:
            if id(s.paths) not in known:
                known[id(s.paths)] = list(
                    zip(s.paths, s.types, s.parameter_bytes, s.parameter_bytes_total, strict=True)
                )
        every = [known[id(s.paths)] for s in samples]
        begin = _replaced(every)
        self.before, self.samples, self._every = begin, samples[begin:], every[begin:]
        # Layers that the newer half of the samples lacks are gone.
        newer = dict.fromkeys(key for keys in self._every[len(self._every) // 2 :] for key in keys)
        self.keys = [key for key in dict.fromkeys(k for keys in self._every for k in keys) if key in newer]
        self.outside_ns = float(_steady(np.array([[s.outside_ns] for s in self.samples], dtype=float))[0])
        self.hidden = {
            key: inside
            for sample, keys in zip(self.samples, self._every, strict=True)
            for key, inside in zip(keys, sample.hidden, strict=True)
            if inside
        }

    def columns(self) -> Columns:
        """Each layer's values per step: the mean of the middle half of the samples that have the layer, times
        how often they have it. Of memory, the largest."""
        places = {key: at for at, key in enumerate(self.keys)}
        tables = {id(keys): np.array([places.get(key, -1) for key in keys]) for keys in self._every}
        shape = (len(self.samples), len(self.keys))
        found = {}
        for name in c.LAYER_COLUMNS:
            values = np.full(shape, np.nan)
            for at, (sample, keys) in enumerate(zip(self.samples, self._every, strict=True)):
                where = tables[id(keys)]
                column = np.asarray(sample.columns.get(name, np.zeros(len(keys))), dtype=float)
                values[at, where[where >= 0]] = column[where >= 0]
            if name.endswith(("bytes", "bytes_total")):
                found[name] = np.nanmax(values, axis=0)
            else:
                found[name] = _steady(values) * _use(~np.isnan(values))
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


def _use(is_there: NDArray[np.bool_]) -> Floats:
    """In how many of the samples since its first one each layer is there."""
    use: Floats = is_there.sum(axis=0) / (len(is_there) - is_there.argmax(axis=0))
    return use


def _steady(values: Floats) -> Floats:
    """For each column the mean of the middle half: a pause that hit one sample does not count."""
    ordered = np.sort(values, axis=0)  # NaN last
    counts = (~np.isnan(values)).sum(axis=0)
    cut, at = counts // 4, np.arange(len(values))[:, None]
    used = (at >= cut) & (at < counts - cut)
    means: Floats = np.where(used, ordered, 0.0).sum(axis=0) / np.maximum(used.sum(axis=0), 1)
    return means


def _aligned(ranks: Sequence[_RankLayers], keys: list[Key]) -> Columns:
    """The values of all ranks, a row for each; NaN for a layer that a rank does not have."""
    places = {key: at for at, key in enumerate(keys)}
    found = {name: np.full((len(ranks), len(keys)), np.nan) for name in c.LAYER_COLUMNS}
    for row, rank in enumerate(ranks):
        where = [places[key] for key in rank.keys]
        for name, values in rank.columns().items():
            found[name][row, where] = values
    return found


def _median(values: Floats) -> Floats:
    """The median rank's; of an even number, the lower one."""
    counts = (~np.isnan(values)).sum(axis=0)
    middle: Floats = np.sort(values, axis=0)[(counts - 1) // 2, np.arange(values.shape[1])]
    return middle


def _lower(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _layer(
    key: Key,
    v: dict[str, float],
    passes: tuple[float, float],
    worst: RankValue,
    hidden: int,
    reads_saved: bool,
) -> Layer:
    forward, backward = passes
    whole = forward + backward
    return Layer(
        path=key[0],
        type=key[1],
        calls=v["calls"],
        forward_ms=v["forward"] / 1e6,
        forward_total_ms=v["forward_total"] / 1e6,
        forward_share=v["forward"] / forward if forward else None,
        backward_ms=v["backward"] / 1e6,
        backward_total_ms=v["backward_total"] / 1e6,
        backward_share=v["backward"] / backward if backward else None,
        recompute_ms=v["recompute"] / 1e6,
        recompute_total_ms=v["recompute_total"] / 1e6,
        share=(v["forward"] + v["backward"] + v["recompute"]) / whole if whole else None,
        parameter_bytes=float(key[2]),
        parameter_total_bytes=float(key[3]),
        gradient_bytes=v["gradient_bytes"],
        activation_bytes=v["activation_bytes"] if reads_saved else None,
        activation_total_bytes=v["activation_bytes_total"] if reads_saved else None,
        hidden=hidden,
        worst=worst,
    )


def _notes(
    rows: list[Layer],
    longest: _RankLayers,
    per_rank: dict[int, _RankLayers],
    whole_ns: float,
    reads_saved: bool,
) -> list[str]:
    """What the table does not say by itself."""
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
    return notes + _differences(rows, per_rank, whole_ns)


def _differences(rows: list[Layer], per_rank: dict[int, _RankLayers], whole_ns: float) -> list[str]:
    """Layers that take longer on one rank."""
    if len(per_rank) < 2 or any(len(r.samples) < FEWEST_SAMPLES for r in per_rank.values()):
        return []
    found = []
    for row in rows:
        usual, worst = row.forward_ms + row.backward_ms + row.recompute_ms, row.worst.value or 0.0
        if worst > DIFFERS_FACTOR * usual and (worst - usual) * 1e6 > DIFFERS_SHARE * whole_ns:
            found.append((worst - usual, row, usual))
    found.sort(key=lambda one: -one[0])
    return [
        f"{row.path} takes {fmt.ms(row.worst.value)} on {fmt.rank(row.worst.rank)}, "
        f"{fmt.ms(usual)} on the median rank."
        for _, row, usual in found[:MOST_NAMED]
    ]
