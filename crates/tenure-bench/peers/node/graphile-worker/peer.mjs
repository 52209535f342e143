// graphile-worker, with the settings of the page "Performance" of its documentation: 24 jobs at a
// time, a local queue of 500, and completions in batches.

import { Logger, makeWorkerUtils, run as start } from "graphile-worker";
import pg from "pg";

import { installed, run } from "../harness.mjs";

const CONCURRENCY = 24;
const quiet = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

let pool, utils;

await run({
  version: installed("graphile-worker"),
  settings: `concurrentJobs ${CONCURRENCY}, localQueue 500, completeJobBatchDelay 0`,
  async open() {
    pool = new pg.Pool({ max: CONCURRENCY + 1 });
    pool.on("error", (error) => console.error(error));
    pool.on("connect", (client) => client.on("error", (error) => console.error(error)));
    utils = await makeWorkerUtils({ pgPool: pool, logger: quiet });
    await utils.migrate();
  },
  enqueue: (n) => utils.addJob("noop", { n }),
  enqueueMany: (numbers) =>
    utils.addJobs(numbers.map((n) => ({ identifier: "noop", payload: { n } }))),
  async work(ran) {
    const runner = await start({
      pgPool: pool,
      logger: quiet,
      noHandleSignals: true,
      taskList: { noop: async ({ n }) => ran(n) },
      preset: {
        worker: {
          concurrentJobs: CONCURRENCY,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
    });
    return () => runner.stop();
  },
  async close() {
    await utils.release();
    await pool.end();
  },
});
