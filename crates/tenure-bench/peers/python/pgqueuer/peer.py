"""pgqueuer on asyncpg and uvloop, with batches of a thousand."""

import asyncio
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgPoolDriver, Queries, QueueManager

import harness

BATCH = 1000


class Peer:
    name = "pgqueuer"
    settings = f"batch_size {BATCH}, uvloop, asyncpg pool 20"

    async def open(self, runs):
        # asyncpg finds the server by the variables of libpq.
        self.pool = await asyncpg.create_pool(min_size=20, max_size=20)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))
        await self.queries.install()
        self.runs = runs

    async def close(self):
        await self.pool.close()

    async def enqueue(self, n):
        await self.queries.enqueue("noop", str(n).encode())

    async def enqueue_many(self, numbers):
        payloads = [str(n).encode() for n in numbers]
        await self.queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    async def work(self):
        # A manager that was shut down cannot start again.
        self.manager = QueueManager(Queries(AsyncpgPoolDriver(self.pool)))

        @self.manager.entrypoint("noop")
        async def noop(job):
            self.runs.ran(int(job.payload))

        waiting = timedelta(seconds=30)
        self.worker = asyncio.create_task(
            self.manager.run(dequeue_timeout=waiting, batch_size=BATCH)
        )

    async def stop(self):
        self.manager.shutdown.set()
        await self.worker


with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(harness.main(Peer()))
