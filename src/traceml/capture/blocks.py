"""`trace_step` blocks that need a look: the first ones, nested ones, those that an exception leaves."""

from traceml.capture.session import Session
from traceml.capture.slots import is_wait
from traceml.schema import catalog as c


def enter_block(session: Session) -> None:
    """A block opens: an unclaimed gap since the last step was waiting for input."""
    switch = session.switch
    switch.block_depth += 1
    if switch.block_depth > 1:
        return
    switch.blocks = 1
    session.look_closer()
    if not session.stepping:
        session.stepping = True
        if session.inputs.candidate is None:
            session.restart()
    elif not switch.fetches and is_wait(switch.current):
        switch.flush(switch.clock())
        switch.move(c.WAIT_START, c.INPUT)
        switch.step_flags |= c.FLAG_INPUT_INFERRED
    if session.writer is None:
        session.become_rank(None)


def leave_block(session: Session, failed: bool) -> None:
    """A block closes: the step is over, or aborted by an exception."""
    session.switch.block_depth -= 1
    if session.switch.block_depth:
        return
    if failed:
        session.drop_step()
    else:
        session.end_step(session.switch.clock())
