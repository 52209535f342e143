// What the adapters in Node have in common: a measure is prepared, timed and counted here, and an
// adapter only says how its queue is opened, filled and worked on.
//
// Arguments: the measure, how many jobs, and how many jobs run before the time begins. The last line
// on standard output is the answer, one JSON object; `answer.rs` of tenure-bench reads it.

import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";

// How many jobs one call enqueues in bulk.
const BULK = 1000;
const CALLERS = 16;
// Until the next job arrives on an idle worker, in milliseconds.
const PAUSE = 50;

// The version of an installed package.
export function installed(name) {
  const file = new URL(`node_modules/${name}/package.json`, `file://${process.cwd()}/`);
  return JSON.parse(readFileSync(file, "utf8")).version;
}

// Counts the runs of each job by its number, so that a job that ran twice cannot make up for one
// that did not run.
class Runs {
  counts = [];
  startedAt = [];
  total = 0;
  #wanted = Infinity;
  #reached = () => {};

  // Numbers for new jobs.
  number(jobs) {
    const first = this.counts.length;
    const numbers = Array.from({ length: jobs }, (_, at) => first + at);
    for (const n of numbers) this.counts[n] = 0;
    return numbers;
  }

  // The handler of every adapter calls this with the number of its job.
  ran = (n) => {
    this.startedAt[n] = performance.now();
    this.counts[n] = (this.counts[n] ?? 0) + 1;
    this.total += 1;
    if (this.total >= this.#wanted) this.#reached();
  };

  // Resolves when handlers have run as often as there are jobs.
  all() {
    return new Promise((resolve) => {
      this.#wanted = this.counts.length;
      this.#reached = resolve;
      if (this.total >= this.#wanted) resolve();
    });
  }

  answer() {
    const once = this.counts.filter((count) => count === 1).length;
    const again = this.counts.filter((count) => count > 1).length;
    return { enqueued: this.counts.length, once, again };
  }
}

async function seconds(work) {
  const begin = performance.now();
  await work();
  return (performance.now() - begin) / 1000;
}

// Enqueues in calls of a thousand, or if the peer has no such call, one by one.
async function fill(peer, numbers) {
  if (!peer.enqueueMany) return singly(peer, numbers, CALLERS);
  for (let at = 0; at < numbers.length; at += BULK) {
    await peer.enqueueMany(numbers.slice(at, at + BULK));
  }
}

// Callers at the same time, each of whom waits for its own jobs to be stored.
async function singly(peer, numbers, callers) {
  const each = Math.ceil(numbers.length / callers);
  const caller = async (_, at) => {
    for (const n of numbers.slice(at * each, (at + 1) * each)) await peer.enqueue(n);
  };
  await Promise.all(Array.from({ length: callers }, caller));
}

// Works until every job has run. The time ends with the last run of a handler; what the peer writes
// afterwards is not in it.
async function drain(peer, runs) {
  let stop;
  const took = await seconds(async () => {
    const all = runs.all();
    stop = await peer.work(runs.ran);
    await all;
  });
  await stop();
  return took;
}

async function measure(peer, runs, name, jobs) {
  const took = {};
  const pickups = [];
  if (name === "process") {
    const numbers = runs.number(jobs);
    const filled = await seconds(() => fill(peer, numbers));
    if (peer.enqueueMany) took.enqueue_bulk = filled;
    took.process = await drain(peer, runs);
  } else if (name === "enqueue_1" || name === "enqueue_16") {
    const numbers = runs.number(jobs);
    took[name] = await seconds(() => singly(peer, numbers, name === "enqueue_1" ? 1 : CALLERS));
    await drain(peer, runs);
  } else if (name === "idle_pickup") {
    const stop = await peer.work(runs.ran);
    for (let at = 0; at < jobs; at += 1) {
      const [n] = runs.number(1);
      await pause(PAUSE);
      const all = runs.all();
      const begin = performance.now();
      await peer.enqueue(n);
      await all;
      pickups.push(runs.startedAt[n] - begin);
    }
    await stop();
  } else {
    throw new Error(`there is no measure ${name}`);
  }
  return { seconds: took, pickups_ms: pickups };
}

// Measures once, and ends the process.
export async function run(peer) {
  const [name, jobs, warmUp] = process.argv.slice(2);
  const runs = new Runs();
  await peer.open();
  await fill(peer, runs.number(Number(warmUp)));
  await drain(peer, runs);
  const measured = await measure(peer, runs, name, Number(jobs));
  await peer.close();
  const { version, settings } = peer;
  const answer = JSON.stringify({ version, settings, ...measured, ...runs.answer() });
  // A timer that a peer has left behind must not keep this process.
  process.stdout.write(`${answer}\n`, () => process.exit(0));
}
