// pg-boss, with what its documentation offers for throughput: large batches, the next fetch at once
// after a full batch, a queue with a partition of its own, and LISTEN/NOTIFY to wake idle workers.

import { PgBoss } from "pg-boss";

import { installed, run } from "../harness.mjs";

const QUEUE = "noop";
const BATCH = 1000;

let boss;

await run({
  version: installed("pg-boss"),
  settings: `batchSize ${BATCH}, burstWhenBatchFull, partition, notify, pool 20`,
  async open() {
    boss = new PgBoss({
      host: process.env.PGHOST,
      port: Number(process.env.PGPORT),
      user: process.env.PGUSER,
      password: process.env.PGPASSWORD,
      database: process.env.PGDATABASE,
      max: 20,
      useListenNotify: true,
    });
    boss.on("error", (error) => console.error(error));
    await boss.start();
    await boss.createQueue(QUEUE, { partition: true, notify: true });
  },
  enqueue: (n) => boss.send(QUEUE, { n }),
  enqueueMany: (numbers) => boss.insert(QUEUE, numbers.map((n) => ({ data: { n } }))),
  async work(ran) {
    const options = { batchSize: BATCH, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
    await boss.work(QUEUE, options, async (jobs) => jobs.forEach((job) => ran(job.data.n)));
    return () => boss.offWork(QUEUE, { wait: true });
  },
  close: () => boss.stop({ graceful: true }),
});
