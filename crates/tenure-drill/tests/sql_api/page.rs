//! docs/sql-api.md agrees with the database, and its example workers work.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use postgres::Client;
use tenure_drill::servers;
use tenure_drill::sessions::Lab;
use tenure_drill::sql_api::{Case, claim, sql_cases, state};

pub(crate) const CASES: &[Case] = sql_cases! {
    "page":
    the_page_shows_the_workers_that_are_beside_it,
    the_page_has_every_single_form_with_its_parameters_defaults_and_answer,
    the_page_has_the_columns_of_the_views_in_their_order,
    the_worker_in_sql_does_what_is_due_and_hands_failures_to_the_retry_policy,
    a_python_worker_that_is_killed_in_the_middle_of_a_job_is_replaced_by_another,
    a_python_worker_that_was_replaced_meanwhile_is_refused_and_leaves_a_trace,
    a_python_worker_hands_a_failure_to_the_retry_policy_and_goes_on,
};

const PAGE: &str = include_str!("../../../../docs/sql-api.md");
const WORKER: &str = include_str!("../../../../docs/sql-api/worker.py");
const DRAIN: &str = include_str!("../../../../docs/sql-api/drain.sql");

/// The page without its line breaks.
fn page() -> String {
    PAGE.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn the_page_shows_the_workers_that_are_beside_it() {
    assert!(PAGE.contains(&format!("```python\n{WORKER}```\n")), "worker.py differs");
    assert!(PAGE.contains(&format!("```sql\n{DRAIN}```\n")), "drain.sql differs");
}

fn the_page_has_every_single_form_with_its_parameters_defaults_and_answer() {
    let mut lab = Lab::new();
    // Functions for one job have parameters with plain names. In all others, parameters begin with
    // `p_`, or no role and no operator calls the function.
    let sql = "SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ') → ' || pg_get_function_result(p.oid)
                 FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND p.proname = ANY ($1)";
    let names = [
        "enqueue",
        "fingerprint",
        "claim",
        "renew",
        "progress",
        "complete",
        "fail",
        "snooze",
        "release",
        "bury",
        "park",
        "fence",
        "hold",
        "refused",
        "effect_open",
        "effect_commit",
        "effect_fail",
        "effect_settle",
        "step_get",
        "step_put",
        "cancel",
        "requeue",
        "resume",
        "effect_resolve",
        "now",
        "outcome",
    ];
    let rows = lab.owner().query(sql, &[&&names[..]]).unwrap();
    assert_eq!(rows.len(), names.len());
    for row in rows {
        let mut signature = row.get::<_, String>(0).replace(" DEFAULT ", " = ");
        for (long, short) in [
            ("timestamp with time zone", "timestamptz"),
            ("integer", "int"),
            ("::text[]", ""),
            ("::text", ""),
            ("::json", ""),
            ("::interval", ""),
            ("::timestamptz", ""),
            ("::bigint", ""),
        ] {
            signature = signature.replace(long, short);
        }
        assert!(page().contains(&signature), "the page lacks {signature}");
    }
}

fn the_page_has_the_columns_of_the_views_in_their_order() {
    let mut lab = Lab::new();
    for view in ["job", "event", "effect", "stats"] {
        let columns = lab.text(&format!(
            "SELECT string_agg('`' || attname || '`', ', ' ORDER BY attnum) FROM pg_attribute
              WHERE attrelid = 'tenure.{view}'::regclass AND attnum > 0"
        ));
        let row = PAGE.lines().find(|line| line.starts_with(&format!("| `{view}` |"))).unwrap();
        assert!(row.ends_with(&format!("| {columns} |")), "{view}: {columns}");
    }
}

/// A database with the table that both workers write to.
fn furnish() -> Lab {
    let mut lab = Lab::new();
    let member = lab.member("worker");
    lab.owner()
        .batch_execute(&format!(
            "DROP TABLE IF EXISTS public.greetings; CREATE TABLE public.greetings (name text NOT NULL);
             GRANT ALL ON public.greetings TO \"{member}\""
        ))
        .unwrap();
    lab
}

fn greetings(lab: &mut Lab) -> i64 {
    lab.number("SELECT count(*) FROM public.greetings")
}

fn enqueue(session: &mut Client, args: &str) -> i64 {
    session.query_one("SELECT tenure.enqueue('greet', $1::text::json)", &[&args]).unwrap().get(0)
}

fn the_worker_in_sql_does_what_is_due_and_hands_failures_to_the_retry_policy() {
    let mut lab = furnish();
    let mut session = lab.session_as("worker");
    for args in [r#"{"name":"Ann"}"#, "{}", r#"{"name":"Bob"}"#] {
        enqueue(&mut session, args);
    }
    lab.owner().batch_execute(DRAIN).unwrap();
    session.batch_execute("CALL drain('nightly')").unwrap();
    assert_eq!(greetings(&mut lab), 2);
    let states = "SELECT string_agg(state || attempt, ' ' ORDER BY id) FROM tenure.job";
    assert_eq!(lab.text(states), "succeeded1 queued1 succeeded1");
    let why = lab.text("SELECT note FROM tenure.event WHERE verb = 'retry'");
    assert!(why.contains("null value"), "{why}");
    lab.owner().batch_execute("DROP PROCEDURE drain").unwrap();
}

/// Where psycopg is: in the machine's own Python, or in a directory of ours.
fn psycopg() -> PathBuf {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _alone = INSTALLING.lock();
    let ours = Path::new(env!("CARGO_TARGET_TMPDIR")).join("psycopg");
    let known =
        || python(&ours).args(["-c", "import psycopg"]).stderr(Stdio::null()).status().unwrap();
    if !known().success() {
        // Installs into a new directory first: another process may be installing too, and a
        // half-installed package is useless.
        let fresh = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let installed = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
            .arg(fresh.path())
            .arg("psycopg[binary]>=3.2")
            .status()
            .unwrap();
        assert!(installed.success(), "psycopg could not be installed");
        let _lost_the_race = std::fs::rename(fresh.keep(), &ours);
        assert!(known().success(), "psycopg was installed and is not found");
    }
    ours
}

fn python(packages: &Path) -> Command {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", packages);
    python
}

/// The worker of the page, in a role that may work and nothing else. It is killed in the end in any
/// case.
struct Worker(Child);

impl Worker {
    fn start(lab: &Lab) -> Worker {
        let address = servers::address(lab.database(), "tenure");
        let plain = address.split_once("&schema=").map_or(address.as_str(), |(plain, _)| plain);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sql-api/worker.py");
        let child = python(&psycopg())
            .arg(file)
            .env("DATABASE_URL", plain)
            .env("PGOPTIONS", format!("-c role={}", lab.member("worker")))
            .spawn()
            .unwrap();
        Worker(child)
    }

    /// Kills it with -9, so that it cannot clean up.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a worker and brings it to the middle of a job: its handler waits for a locked table.
fn start_in_the_middle(lab: &mut Lab) -> (Worker, Client) {
    let mut lock = lab.session();
    lock.batch_execute("BEGIN; LOCK TABLE public.greetings").unwrap();
    let worker = Worker::start(lab);
    lab.wait_until("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'public.greetings'::regclass)");
    (worker, lock)
}

/// G1, G5: nothing is done twice, since the killed worker's writes were never committed.
fn a_python_worker_that_is_killed_in_the_middle_of_a_job_is_replaced_by_another() {
    let mut lab = furnish();
    let mut session = lab.session_as("enqueuer");
    let job = enqueue(&mut session, r#"{"name":"Ann"}"#);
    let (mut first, mut lock) = start_in_the_middle(&mut lab);
    first.kill();
    lock.batch_execute("ROLLBACK").unwrap();
    assert_eq!(state(&mut lab, job), "running", "nobody knows yet");

    lab.advance(30_000);
    let _second = Worker::start(&lab);
    lab.wait_until("SELECT state = 'succeeded' FROM tenure.job");
    assert_eq!(greetings(&mut lab), 1);
    let told = "SELECT result ->> 'greeted' || ' ' || attempt || ' ' || crashes FROM tenure.job";
    assert_eq!(lab.text(told), "Ann 2 1");
}

fn a_python_worker_that_was_replaced_meanwhile_is_refused_and_leaves_a_trace() {
    let mut lab = furnish();
    let mut session = lab.session_as("worker");
    let job = enqueue(&mut session, r#"{"name":"Ann"}"#);
    let (_slow, mut lock) = start_in_the_middle(&mut lab);
    lab.advance(30_000);
    let quick = claim(&mut session, 60_000);
    lock.batch_execute("ROLLBACK").unwrap();
    lab.wait_until(
        "SELECT EXISTS (SELECT 1 FROM tenure.event WHERE refused AND verb = 'complete')",
    );
    assert_eq!((greetings(&mut lab), state(&mut lab, job)), (0, "running".into()));
    session.batch_execute(&quick.call("complete")).unwrap();
}

fn a_python_worker_hands_a_failure_to_the_retry_policy_and_goes_on() {
    let mut lab = furnish();
    let mut session = lab.session_as("enqueuer");
    let failing = enqueue(&mut session, "{}");
    let _worker = Worker::start(&lab);
    lab.wait_until("SELECT EXISTS (SELECT 1 FROM tenure.event WHERE verb = 'retry')");
    let job = enqueue(&mut session, r#"{"name":"Bob"}"#);
    lab.wait_until(&format!("SELECT state = 'succeeded' FROM tenure.job WHERE id = {job}"));
    assert_eq!(
        lab.text(&format!("SELECT state || attempt FROM tenure.job WHERE id = {failing}")),
        "queued1"
    );
}
