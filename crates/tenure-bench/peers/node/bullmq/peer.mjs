// BullMQ on Redis. The server writes its log once a second, as BullMQ's documentation recommends for
// production; the bench starts it so. Handlers do nothing, so a high concurrency is best.

import { Queue, Worker } from "bullmq";

import { installed, run } from "../harness.mjs";

const QUEUE = "noop";
const CONCURRENCY = 100;
const connection = { path: process.env.PEER_REDIS, maxRetriesPerRequest: null };

let queue;

await run({
  version: installed("bullmq"),
  settings: `concurrency ${CONCURRENCY}, Redis with appendonly yes, appendfsync everysec`,
  async open() {
    queue = new Queue(QUEUE, { connection });
    await queue.waitUntilReady();
  },
  enqueue: (n) => queue.add("noop", { n }),
  enqueueMany: (numbers) => queue.addBulk(numbers.map((n) => ({ name: "noop", data: { n } }))),
  async work(ran) {
    const handler = async (job) => ran(job.data.n);
    const worker = new Worker(QUEUE, handler, { connection, concurrency: CONCURRENCY });
    worker.on("error", (error) => console.error(error));
    return () => worker.close();
  },
  close: () => queue.close(),
});
