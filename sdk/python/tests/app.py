"""An application that the tests of the command import."""

from __future__ import annotations

import asyncio
import os
import time

from windlass import Context, Windlass

wl = Windlass()


@wl.job(queue=os.environ.get("TEST_QUEUE", "default"))
async def nap(n: int) -> int:
    await asyncio.sleep(0.02)
    return n


@wl.job(queue=os.environ.get("TEST_QUEUE", "default"))
def ignore_cancellation(ctx: Context) -> None:
    ctx.phase("fetch")
    time.sleep(600)


@wl.job(queue=os.environ.get("TEST_QUEUE", "default"))
async def hold(ctx: Context) -> str:
    ctx.phase("fetch")
    await asyncio.sleep(60)
    return "never"
