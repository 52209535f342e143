"""huey on SQLite: SqliteHuey on a file in WAL mode. It leaves `synchronous` at SQLite's default,
which is FULL, so that each commit waits for the disk."""

import asyncio
import os

from huey import SqliteHuey

import harness

WORKERS = 1


class Peer:
    name = "huey"
    settings = f"SqliteHuey, {WORKERS} worker thread, results off, WAL, synchronous FULL"
    blocking = True

    async def open(self, runs):
        self.huey = SqliteHuey(filename=os.environ["PEER_FILE"], results=False)

        @self.huey.task()
        def noop(n):
            runs.ran(n)

        self.noop = noop

    async def close(self):
        self.huey.storage.close()

    def enqueue(self, n):
        self.noop(n)

    async def work(self):
        self.consumer = self.huey.create_consumer(workers=WORKERS, periodic=False)
        self.consumer.start()

    async def stop(self):
        await asyncio.to_thread(self.consumer.stop, graceful=True)


asyncio.run(harness.main(Peer()))
