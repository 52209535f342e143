"""What the adapters in Python have in common: a measure is prepared, timed and counted here, and an
adapter only says how its queue is opened, filled and worked on.

Arguments: the measure, how many jobs, and how many jobs run before the time begins. The last line on
standard output is the answer, one JSON object; `answer.rs` of tenure-bench reads it.

An adapter is an object with `name`, `settings`, and these methods, all of them coroutines except
`enqueue` of an adapter whose `blocking` is true, which is called on a thread of each caller:

- `open(runs)` and `close()`
- `enqueue(n)`, and `enqueue_many(numbers)` if the peer has such a call
- `work()`, which starts the worker, and `stop()`
"""

import asyncio
import json
import sys
import threading
import time
from importlib.metadata import version

# How many jobs one call enqueues in bulk.
BULK = 1000
CALLERS = 16
# Until the next job arrives on an idle worker, in seconds.
PAUSE = 0.05


class Runs:
    """Counts the runs of each job by its number, so that a job that ran twice cannot make up for one
    that did not run."""

    def __init__(self):
        self.counts = []
        self.started_at = {}
        self.total = 0
        self.last_at = 0.0
        self.lock = threading.Lock()
        self.wanted = None
        self.reached = threading.Event()

    def number(self, jobs):
        """Numbers for new jobs."""
        first = len(self.counts)
        with self.lock:
            self.counts.extend([0] * jobs)
        return range(first, first + jobs)

    def ran(self, n, at=None):
        """The handler of every adapter calls this with the number of its job."""
        at = at or time.perf_counter()
        with self.lock:
            self.counts[n] += 1
            self.total += 1
            self.started_at[n] = at
            self.last_at = max(self.last_at, at)
            if self.wanted is not None and self.total >= self.wanted:
                self.reached.set()

    async def all(self):
        """Waits until handlers have run as often as there are jobs."""
        with self.lock:
            self.wanted = len(self.counts)
            self.reached.clear()
            if self.total >= self.wanted:
                return
        await asyncio.to_thread(self.reached.wait)

    def answer(self):
        once = sum(count == 1 for count in self.counts)
        again = sum(count > 1 for count in self.counts)
        return {"enqueued": len(self.counts), "once": once, "again": again}


async def fill(peer, numbers):
    """Enqueues in calls of a thousand, or if the peer has no such call, one by one."""
    if not hasattr(peer, "enqueue_many"):
        return await singly(peer, numbers, 1)
    for at in range(0, len(numbers), BULK):
        await peer.enqueue_many(numbers[at : at + BULK])


async def singly(peer, numbers, callers):
    """Callers at the same time, each of whom waits for its own jobs to be stored."""
    blocking = getattr(peer, "blocking", False)

    async def caller(own):
        for n in own:
            await peer.enqueue(n)

    def caller_on_thread(own):
        for n in own:
            peer.enqueue(n)

    each = -(-len(numbers) // callers)
    parts = [numbers[at * each : (at + 1) * each] for at in range(callers)]
    if blocking:
        await asyncio.gather(*(asyncio.to_thread(caller_on_thread, own) for own in parts))
    else:
        await asyncio.gather(*(caller(own) for own in parts))


async def drain(peer, runs):
    """Works until every job has run. The time ends with the last run of a handler; what the peer
    writes afterwards is not in it."""
    begin = time.perf_counter()
    await peer.work()
    await runs.all()
    await peer.stop()
    return runs.last_at - begin


async def idle(peer, runs, jobs):
    """How long each job took from the call of enqueue to the call of its handler."""
    pickups = []
    await peer.work()
    for _ in range(jobs):
        (n,) = runs.number(1)
        await asyncio.sleep(PAUSE)
        begin = time.perf_counter()
        await singly(peer, range(n, n + 1), 1)
        await runs.all()
        pickups.append((runs.started_at[n] - begin) * 1000)
    await peer.stop()
    return pickups


async def timed(work):
    begin = time.perf_counter()
    await work
    return time.perf_counter() - begin


async def measure(peer, runs, name, jobs):
    seconds, pickups = {}, []
    if name == "process":
        numbers = runs.number(jobs)
        filled = await timed(fill(peer, numbers))
        if hasattr(peer, "enqueue_many"):
            seconds["enqueue_bulk"] = filled
        seconds["process"] = await drain(peer, runs)
    elif name in ("enqueue_1", "enqueue_16"):
        callers = 1 if name == "enqueue_1" else CALLERS
        seconds[name] = await timed(singly(peer, runs.number(jobs), callers))
        await drain(peer, runs)
    elif name == "idle_pickup":
        pickups = await idle(peer, runs, jobs)
    else:
        raise ValueError(f"there is no measure {name}")
    return {"seconds": seconds, "pickups_ms": pickups}


async def main(peer):
    name, jobs, warm_up = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    runs = Runs()
    await peer.open(runs)
    await fill(peer, runs.number(warm_up))
    await drain(peer, runs)
    measured = await measure(peer, runs, name, jobs)
    await peer.close()
    about = {"version": version(peer.name), "settings": peer.settings}
    print(json.dumps(about | measured | runs.answer()), flush=True)
