"""A worker for Tenure in Python, with psycopg 3.2 or newer. PG* variables or DATABASE_URL say where the database is."""
import json, os, threading, uuid
import psycopg
from psycopg.rows import namedtuple_row

def greet(db, args):  # what a handler writes is committed together with the completion, or not at all
    db.execute("INSERT INTO greetings (name) VALUES (%s)", [args["name"]])
    return {"greeted": args["name"]}

HANDLERS = {"greet": greet}

def connect():
    return psycopg.connect(os.environ.get("DATABASE_URL", ""), autocommit=True, row_factory=namedtuple_row)

def renew(lease, over):  # on a connection of its own, until the attempt is over
    with connect() as db:
        while not over.wait(10):
            db.execute("SELECT tenure.renew(%s, %s, '30 seconds')", lease)

def attempt(db, job, lease):
    try:
        with db.transaction():
            db.execute("SELECT tenure.fence(%s, %s)", lease)
            result = HANDLERS[job.kind](db, job.args)
            db.execute("SELECT tenure.complete(%s, %s, %s)", [*lease, json.dumps(result)])
    except Exception as error:
        sqlstate = getattr(error, "sqlstate", None)
        if sqlstate == "TN001":  # another worker has it, and our writes are undone
            db.execute("SELECT tenure.refused(%s, %s, 'complete')", lease)
        elif sqlstate != "TN004":  # that says: it was done before, in an earlier transaction
            db.execute("SELECT tenure.fail(%s, %s, %s)", [*lease, str(error)])

me, db = f"worker-{uuid.uuid4()}", connect()  # one name for each start, never the host's
db.execute("LISTEN tenure")  # a hint that saves waiting; without it, jobs are found within a second
while True:
    job = db.execute("SELECT id, token, kind, args FROM tenure.claim(%s, kinds => %s)", [me, list(HANDLERS)]).fetchone()
    if job is None:
        list(db.notifies(timeout=1, stop_after=1))
        continue
    over = threading.Event()
    threading.Thread(target=renew, args=[job[:2], over], daemon=True).start()
    attempt(db, job, job[:2])
    over.set()
