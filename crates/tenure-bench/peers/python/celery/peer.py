"""Celery on a Redis that keeps everything in memory. One worker with a process for each core, no
results, and the prefetch of the page "Optimizing" of its documentation for many short tasks. A
message is acknowledged before its task runs, which is Celery's default.

Tasks run in processes of the worker's pool. They write the number of their job and the time into a
pipe, which this process reads."""

import asyncio
import multiprocessing
import os
import struct
import threading
import time

from celery import Celery, signals

import harness

QUEUE = "noop"
PREFETCH = 150
RECORD = struct.Struct("qd")

# Processes that are forked have all of this.
forking = multiprocessing.get_context("fork")
is_ready = forking.Event()
told, tell = os.pipe()
app = Celery("peer", broker=f"redis+socket://{os.environ['PEER_REDIS']}")
app.conf.task_ignore_result = True
app.conf.task_default_queue = QUEUE
app.conf.worker_prefetch_multiplier = PREFETCH


@app.task(name="noop")
def noop(n):
    # A write of so few bytes into a pipe is never mixed with another.
    os.write(tell, RECORD.pack(n, time.perf_counter()))


def start_worker():
    signals.worker_ready.connect(lambda **_: is_ready.set(), weak=False)
    # It is ready on a queue that nothing is sent to, so that its start is not in the time.
    without = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "--loglevel=ERROR", "--queues=idle", *without])


class Peer:
    name = "celery"
    settings = f"prefork, a process for each core, prefetch {PREFETCH}, Redis in memory"
    blocking = True

    async def open(self, runs):
        self.runs = runs
        threading.Thread(target=self.read, daemon=True).start()
        self.worker = forking.Process(target=start_worker)
        self.worker.start()
        await asyncio.to_thread(is_ready.wait)

    def read(self):
        rest = b""
        while True:
            rest += os.read(told, 1 << 16)
            whole = len(rest) - len(rest) % RECORD.size
            for n, at in RECORD.iter_unpack(rest[:whole]):
                self.runs.ran(n, at)
            rest = rest[whole:]

    async def close(self):
        self.worker.terminate()
        await asyncio.to_thread(self.worker.join)

    def enqueue(self, n):
        noop.delay(n)

    async def work(self):
        app.control.add_consumer(QUEUE)

    async def stop(self):
        app.control.cancel_consumer(QUEUE, reply=True, limit=1, timeout=30)


asyncio.run(harness.main(Peer()))
