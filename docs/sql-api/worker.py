"""A worker for Tenure in Python, with psycopg 3.2 or newer. PG* variables or DATABASE_URL say where the database is."""

import json, os, threading, uuid
from datetime import timedelta

import psycopg
from psycopg.rows import namedtuple_row

ME = f"worker-{uuid.uuid4()}"  # one for each start, never the host's name
LEASE = timedelta(seconds=30)


def greet(db, args):
    """A handler: what it writes is committed together with the completion, or not at all."""
    db.execute("INSERT INTO greetings (name) VALUES (%s)", [args["name"]])
    return {"greeted": args["name"]}


HANDLERS = {"greet": greet}


def connect():
    return psycopg.connect(os.environ.get("DATABASE_URL", ""), autocommit=True, row_factory=namedtuple_row)


def renew(job, over):
    """Keeps the lease, on a connection of its own, until the attempt is over."""
    try:
        with connect() as db:
            while not over.wait(LEASE.total_seconds() / 3):
                db.execute("SELECT tenure.renew(%s, %s, %s)", [job.id, job.token, LEASE])
    except psycopg.Error as error:  # the completion will tell whether the job is lost
        print(f"job {job.id}: not renewed: {error}", flush=True)


def attempt(db, job):
    try:
        with db.transaction():
            db.execute("SELECT tenure.fence(%s, %s)", [job.id, job.token])
            result = HANDLERS[job.kind](db, job.args)
            db.execute("SELECT tenure.complete(%s, %s, %s)", [job.id, job.token, json.dumps(result)])
        print(f"job {job.id}: completed", flush=True)
    except Exception as error:
        if getattr(error, "sqlstate", None) == "TN001":
            raise
        row = db.execute("SELECT tenure.fail(%s, %s, %s)", [job.id, job.token, str(error)]).fetchone()
        print(f"job {job.id}: failed, now {row.fail}: {error}", flush=True)


def main():
    claim = "SELECT id, token, kind, args FROM tenure.claim(%s, kinds => %s, lease => %s)"
    with connect() as db:
        db.execute("LISTEN tenure")  # a hint that saves waiting; without it, jobs are found within a second
        while True:
            job = db.execute(claim, [ME, list(HANDLERS), LEASE]).fetchone()
            if job is None:
                list(db.notifies(timeout=1, stop_after=1))
                continue
            over = threading.Event()
            threading.Thread(target=renew, args=[job, over], daemon=True).start()
            try:
                attempt(db, job)
            except psycopg.Error as error:
                if error.sqlstate != "TN001":
                    raise  # such as a lost connection: end, and let whoever started us start us again
                print(f"job {job.id}: lost: {error}", flush=True)  # somebody else has it; our writes are undone
                db.execute("SELECT tenure.refused(%s, %s, 'complete')", [job.id, job.token])
            finally:
                over.set()


if __name__ == "__main__":
    main()
