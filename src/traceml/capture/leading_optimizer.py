"""Which optimizer's `step()` ends a training step. No torch: any object can step.

One optimizer: that one. Several in turn (GAN, one for each part of a model): the last of the cycle, so
that a step is one round of all of them. Until that is known a row is written early and then superseded,
because a completed step must be on record the moment it completes: in the first cycle, and when an optimizer
that never stepped before steps between two steps of the only one (the next stage of a training, or a cycle).
"""

import weakref
from typing import Any, Final

NOTHING: Final = 0
ENDS_STEP: Final = 1
EXTENDS_STEP: Final = 2
_UNSURE_PATIENCE: Final = 16


class LeadingOptimizer:
    """Is called for every optimizer step and every training batch; answers whether the step is over."""

    def __init__(self) -> None:
        self._cycle: list[int] = []
        self._leader: int | None = None
        self._alive: Any = None
        self._refs: dict[int, Any] = {}
        self._others = 0
        self._most_others = 0
        self._rounds = 0
        self._newcomer: Any = None  # an optimizer that was not part of the cycle so far, and stepped in it
        self._made_since: Any = None  # an optimizer that was made after the leader's latest step
        self.other_steps = 0  # of optimizers that end no step
        self.undecided = True  # the first cycle of optimizers is still open
        self.may_grow = True  # so the last row, or that of a newcomer without a batch, may be superseded
        self.took_over = False  # another one leads now than did before
        self.only = 0  # id of the optimizer that has been the only one for a while: no need to ask

    def made(self, optimizer: object) -> None:
        """A new optimizer: if it steps before the leader does again, it replaces that one (the next fold)."""
        if self._leader is not None and not self._most_others:
            self._made_since = weakref.ref(optimizer)
            self.only = 0

    def new_batch(self) -> int:
        """A batch was fetched: the first cycle, if one is open, is complete.

        ENDS_STEP when a newcomer stepped for the batch before and the leader did not: the newcomer took over.
        """
        if self._leader is None and self._cycle:
            self._lead(self._cycle[-1])
        newcomer = self._newcomer() if self._newcomer is not None else None
        if newcomer is None:
            return NOTHING
        self._refs[id(newcomer)] = self._newcomer
        self._lead(id(newcomer))
        return ENDS_STEP

    def stepped(
        self, optimizer: object, is_first_for_batch: bool = False, has_own_backward: bool = False
    ) -> int:
        """`optimizer` finished a step: NOTHING, ENDS_STEP, or EXTENDS_STEP (the last row grows).

        `is_first_for_batch`: the leader has not stepped since the batch was fetched. `has_own_backward`:
        there is no batch, but a backward pass came since the last step of any optimizer.
        """
        key = id(optimizer)
        if self._leader is None:
            if key not in self._refs:
                self._refs[key] = weakref.ref(optimizer)
                self._cycle.append(key)
                return ENDS_STEP if len(self._cycle) == 1 else EXTENDS_STEP
            self._lead(self._cycle[-1])
        if key == self._leader:
            verdict = EXTENDS_STEP if self.may_grow else ENDS_STEP
            self._most_others = max(self._most_others, self._others)
            self._others, self.may_grow = 0, False
            self._newcomer = self._made_since = None
            self._rounds += 1
            if self._rounds >= 4 and not self._most_others:
                self.only = key
            return verdict
        self._others += 1
        self.other_steps += 1
        self.only = 0
        is_new = self._made_since is not None and self._made_since() is optimizer
        if is_new or self._others > self._patience() or self._alive() is None:
            self._refs[key] = weakref.ref(optimizer)
            self._lead(key)
            return ENDS_STEP
        if self._most_others:
            return NOTHING
        if is_first_for_batch:
            self._newcomer = weakref.ref(optimizer)
        self.may_grow = has_own_backward and self._rounds >= 4
        return ENDS_STEP if self.may_grow else NOTHING

    def describe(self) -> str:
        """What a step is, where several optimizers step."""
        leader = self._alive() if self._alive is not None else None
        name = f"an optimizer ({type(leader).__name__})" if leader is not None else "one optimizer"
        return (
            f"Several optimizers are in use. A step ends with a step of {name}; "
            f"others stepped {self.other_steps} times in between."
        )

    def _patience(self) -> int:
        """After this many steps of other optimizers in a row, the old leader counts as retired."""
        if self._rounds >= 4:
            return self._most_others + 1
        return 2 * self._most_others + _UNSURE_PATIENCE

    def _lead(self, key: int) -> None:
        self.took_over = self._leader not in (None, key)
        self._leader = key
        self.undecided = self.may_grow = False
        self._alive = self._refs[key]
        self._refs = {key: self._alive}
        self._newcomer = self._made_since = None
        self._others = self._most_others = self._rounds = self.other_steps = 0
