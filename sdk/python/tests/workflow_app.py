"""The application of the test that kills workers."""

from __future__ import annotations

import os
from pathlib import Path

from windlass import Windlass, Workflow

wl = Windlass()
STEPS = 10


def note(job: str, number: int) -> int:
    with Path(os.environ["EXECUTED"]).open("a") as file:
        file.write(f"{job} {number}\n")
    return number


@wl.workflow(queue="killed", max_attempts=100)
async def counted(ctx: Workflow) -> int:
    return sum([await ctx.step(note, ctx.id, number, name=str(number)) for number in range(STEPS)])
