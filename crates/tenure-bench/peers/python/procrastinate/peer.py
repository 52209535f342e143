"""procrastinate, with an asynchronous worker that runs 20 jobs at a time and listens for new ones."""

import asyncio

from procrastinate import App, PsycopgConnector

import harness

CONCURRENCY = 20


class Peer:
    name = "procrastinate"
    settings = f"concurrency {CONCURRENCY}, listen_notify, pool {CONCURRENCY + 2}"

    async def open(self, runs):
        # psycopg finds the server by the variables of libpq.
        self.app = App(connector=PsycopgConnector(max_size=CONCURRENCY + 2))
        await self.app.open_async()
        await self.app.schema_manager.apply_schema_async()

        @self.app.task(name="noop")
        async def noop(n):
            runs.ran(n)

        self.noop = noop

    async def close(self):
        await self.app.close_async()

    async def enqueue(self, n):
        await self.noop.defer_async(n=n)

    async def enqueue_many(self, numbers):
        await self.noop.batch_defer_async(*({"n": n} for n in numbers))

    async def work(self):
        options = {"concurrency": CONCURRENCY, "install_signal_handlers": False}
        self.worker = asyncio.create_task(self.app.run_worker_async(**options))

    async def stop(self):
        # The first cancellation lets running jobs end.
        self.worker.cancel()
        await asyncio.gather(self.worker, return_exceptions=True)


asyncio.run(harness.main(Peer()))
