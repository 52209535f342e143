//! An installation of an earlier release that is brought up to date equals a new one.
//!
//! Each release that others may have is kept as a file: `sql/<engine>/versions`. It is never edited.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use postgres::Client;
use tenure::WorkerId;
use tenure::engine::clock::{Clock, unique};
use tenure::engine::job::{Limits, State};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::postgres::{Migrations, Postgres, Roles, ServerAddress};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Claim, Look, Settled, Settlement, Store};
use tenure_drill::servers;

/// The files of an engine's versions with this ending, oldest first. There must be at least one.
fn versions(engine: &str, ending: &str) -> Vec<PathBuf> {
    let sql = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tenure/sql").join(engine);
    let files = std::fs::read_dir(sql.join("versions")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let is_one = |file: &PathBuf| file.to_str().is_some_and(|name| name.ends_with(ending));
    let mut files: Vec<_> = files.filter(is_one).collect();
    files.sort();
    assert!(!files.is_empty(), "no version of {engine} is kept");
    files
}

/// A new database on the test server, dropped at the end.
struct Database(String);

impl Database {
    fn new() -> Database {
        let name = format!("version_{}", unique().simple());
        servers::connect("postgres").batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        Database(name)
    }

    fn client(&self) -> Client {
        servers::connect(&self.0)
    }

    fn address(&self) -> ServerAddress {
        ServerAddress::parse(&servers::address(&self.0, "tenure")).unwrap()
    }

    fn up(&self) {
        Migrations::connect(&self.address()).unwrap().up(Roles::Leave).unwrap();
    }

    /// Everything that the schema has, one line each, without what differs between two new
    /// installations.
    fn catalog(&self) -> Vec<String> {
        const LINES: &str = "
            SELECT concat_ws(' ', 'column', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
                       a.attnotnull, a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid), c.reloptions)
              FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
              LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (c.oid, a.attnum)
             WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'c', 'v') AND a.attnum > 0
            UNION ALL
            SELECT concat_ws(' ', 'index', indexdef) FROM pg_indexes WHERE schemaname = 'tenure'
            UNION ALL
            SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(oid))
              FROM pg_constraint WHERE connamespace = 'tenure'::regnamespace
            UNION ALL
            SELECT concat_ws(' ', 'sequence', sequencename, start_value, min_value, increment_by)
              FROM pg_sequences WHERE schemaname = 'tenure'
            UNION ALL
            SELECT concat_ws(' ', 'view', viewname, definition) FROM pg_views WHERE schemaname = 'tenure'
            UNION ALL
            SELECT concat_ws(' ', 'trigger', pg_get_triggerdef(t.oid)) FROM pg_trigger t
              JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'tenure'::regnamespace AND NOT t.tgisinternal
            UNION ALL
            SELECT concat_ws(' ', 'function', p.oid::regprocedure, pg_get_function_arguments(p.oid),
                       pg_get_function_result(p.oid), p.provolatile, p.proparallel, p.prosecdef, p.proconfig, md5(p.prosrc),
                       CASE WHEN has_function_privilege('public', p.oid, 'EXECUTE') THEN 'open to all' END)
              FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace
            UNION ALL
            SELECT concat_ws(' ', 'version', version, name, checksum, min_client) FROM tenure.migrations
            UNION ALL
            SELECT concat_ws(' ', 'functions', functions, functions_release, functions_client) FROM tenure.meta
            ORDER BY 1";
        self.client().query(LINES, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.0);
        let dropped = servers::connect("postgres").batch_execute(&sql);
        assert!(dropped.is_ok() || std::thread::panicking(), "{dropped:?}");
    }
}

/// What one list has and the other lacks.
fn difference<'a>(one: &'a [String], other: &[String]) -> Vec<&'a String> {
    one.iter().filter(|line| !other.contains(line)).collect()
}

/// Runs the jobs of a store, and returns how many there were.
fn work_off(store: &mut dyn Store) -> usize {
    let ask = Claim::new(WorkerId::unique(), 100, std::time::Duration::from_secs(30));
    let attempts = store.claim(&ask).unwrap().attempts;
    let end = |attempt: &tenure::engine::store::Attempt| {
        Settlement::new(attempt.lease.fence(), Outcome::Complete { result: None })
    };
    let settled = store.settle(&attempts.iter().map(end).collect::<Vec<_>>()).unwrap();
    assert!(settled.iter().all(|it| *it == Settled::Applied(State::Succeeded)), "{settled:?}");
    attempts.len()
}

#[test]
fn an_installation_of_an_earlier_release_becomes_what_a_new_one_is() {
    let new = Database::new();
    new.up();
    for file in versions("postgres", ".sql").into_iter().filter(|file| is_dump(file)) {
        let old = Database::new();
        let dump = std::fs::read_to_string(&file).unwrap();
        old.client().batch_execute(&format!("BEGIN; {dump} COMMIT;")).unwrap();
        old.client().batch_execute("SELECT tenure.enqueue('kept', '{}')").unwrap();
        assert_ne!(old.catalog(), new.catalog(), "{file:?} is what this release makes");
        old.up();
        let (was, is) = (old.catalog(), new.catalog());
        assert_eq!((difference(&was, &is), difference(&is, &was)), (vec![], vec![]), "{file:?}");
        let mut store = Postgres::open(
            &old.address(),
            &tenure::engine::store::postgres::PostgresOptions::default(),
        )
        .unwrap();
        assert_eq!(work_off(&mut store), 1, "its jobs are still there");
        assert!(store.check(None, 100).unwrap().wrong.is_empty());
    }
}

fn is_dump(file: &Path) -> bool {
    !file.to_str().unwrap().ends_with(".calls.sql")
}

#[test]
fn what_programs_of_an_earlier_release_call_works_after_the_upgrade() {
    for file in versions("postgres", ".calls.sql") {
        let dump = file.to_str().unwrap().replace(".calls.sql", ".sql");
        for upgraded in [false, true] {
            let old = Database::new();
            let dump = std::fs::read_to_string(&dump).unwrap();
            old.client().batch_execute(&format!("BEGIN; {dump} COMMIT;")).unwrap();
            if upgraded {
                old.up();
            }
            let calls = std::fs::read_to_string(&file).unwrap();
            for call in calls.split("\n\n") {
                let done = old.client().batch_execute(call);
                assert!(done.is_ok(), "upgraded: {upgraded}: {done:?} in {call}");
            }
        }
    }
}

#[test]
fn a_role_that_may_call_a_function_may_call_it_after_the_upgrade() {
    let role = format!("version_{}", unique().simple());
    for file in versions("postgres", ".sql").into_iter().filter(|file| is_dump(file)) {
        let old = Database::new();
        let dump = std::fs::read_to_string(&file).unwrap();
        old.client().batch_execute(&format!("BEGIN; {dump} COMMIT;")).unwrap();
        let grant = format!(
            "CREATE ROLE {role}; GRANT EXECUTE ON FUNCTION tenure.claim_many, tenure.settle_and_claim,
                tenure.enqueue, tenure.lapse_many TO {role}; GRANT SELECT ON tenure.job TO {role};"
        );
        old.client().batch_execute(&grant).unwrap();
        let may = format!(
            "SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace
                AND has_function_privilege('{role}', p.oid, 'EXECUTE')
             UNION ALL SELECT 'job' WHERE has_table_privilege('{role}', 'tenure.job', 'SELECT') ORDER BY 1"
        );
        let rights = || -> Vec<String> {
            old.client().query(&may, &[]).unwrap().iter().map(|row| row.get(0)).collect()
        };
        let before = rights();
        assert_eq!(before.len(), 5, "{before:?}");
        old.up();
        assert_eq!(rights(), before, "{file:?}");
        let clean = format!("DROP OWNED BY {role}; DROP ROLE {role};");
        old.client().batch_execute(&clean).unwrap();
    }
}

#[test]
fn functions_and_views_of_another_shape_are_replaced_and_whoever_might_use_them_still_may() {
    let (old, new) = (Database::new(), Database::new());
    let role = format!("version_{}", unique().simple());
    old.up();
    new.up();
    // As if an earlier release had had another answer, other names of parameters and other columns.
    old.client()
        .batch_execute(&format!(
            "CREATE ROLE {role};
             DROP VIEW tenure.job;
             CREATE VIEW tenure.job AS SELECT 1 AS number;
             DROP FUNCTION tenure.later, tenure.resume;
             CREATE FUNCTION tenure.later(start bigint, length bigint) RETURNS text
                LANGUAGE sql AS 'SELECT NULL::text';
             CREATE FUNCTION tenure.resume(id bigint) RETURNS text LANGUAGE sql AS 'SELECT NULL::text';
             REVOKE ALL ON FUNCTION tenure.later, tenure.resume FROM PUBLIC;
             GRANT EXECUTE ON FUNCTION tenure.later, tenure.resume TO {role};
             GRANT SELECT ON tenure.job TO {role};
             UPDATE tenure.meta SET functions = 'older', functions_release = 0;"
        ))
        .unwrap();
    old.up();
    assert_eq!(old.catalog(), new.catalog());
    let may = format!(
        "SELECT bool_and(has_function_privilege('{role}', p.oid, 'EXECUTE'))
                AND has_table_privilege('{role}', 'tenure.job', 'SELECT')
           FROM pg_proc p
          WHERE p.pronamespace = 'tenure'::regnamespace AND p.proname IN ('later', 'resume')"
    );
    let may: bool = old.client().query_one(&may, &[]).unwrap().get(0);
    let clean = format!("DROP OWNED BY {role}; DROP ROLE {role};");
    old.client().batch_execute(&clean).unwrap();
    assert!(may);
}

#[test]
fn roles_get_their_rights_also_where_the_schema_is_up_to_date() {
    let database = Database::new();
    database.up();
    let may = "SELECT count(*) FROM pg_roles WHERE rolname IN ('tenure_worker', 'tenure_enqueuer')
                  AND has_schema_privilege(oid, 'tenure', 'USAGE')";
    let may = || database.client().query_one(may, &[]).unwrap().get::<_, i64>(0);
    assert_eq!(may(), 0);
    Migrations::connect(&database.address()).unwrap().up(Roles::Make).unwrap();
    assert_eq!(may(), 2);
}

#[test]
fn a_function_that_the_user_s_own_view_needs_is_not_taken_away() {
    let old = Database::new();
    old.up();
    // As if an earlier release had had another parameter.
    old.client()
        .batch_execute(
            "CREATE FUNCTION tenure.later(start bigint, length bigint, unit text) RETURNS bigint
                LANGUAGE sql AS 'SELECT 1::bigint';
             CREATE VIEW public.mine AS SELECT tenure.later(1, 2, 'x');
             UPDATE tenure.meta SET functions = 'older', functions_release = 0;",
        )
        .unwrap();
    let refused = Migrations::connect(&old.address()).unwrap().up(Roles::Leave).unwrap_err();
    assert!(refused.to_string().contains("other objects depend on it"), "{refused}");
    old.client().batch_execute("DROP VIEW public.mine").unwrap();
    old.up();
    let (left, new) = (old.catalog(), Database::new());
    new.up();
    assert_eq!(left, new.catalog());
}

#[test]
fn a_type_that_the_user_s_own_function_needs_is_not_taken_away() {
    let old = Database::new();
    old.up();
    // As if the type had had other columns in an earlier release.
    old.client()
        .batch_execute(
            "DROP TYPE tenure.picked CASCADE;
             CREATE TYPE tenure.picked AS (jobs bigint[]);
             CREATE FUNCTION tenure.admit(p tenure.picked[]) RETURNS text LANGUAGE sql AS 'SELECT NULL::text';
             CREATE FUNCTION public.mine(p tenure.picked) RETURNS int LANGUAGE sql AS 'SELECT 1';
             UPDATE tenure.meta SET functions = 'older', functions_release = 0;",
        )
        .unwrap();
    let refused = Migrations::connect(&old.address()).unwrap().up(Roles::Leave).unwrap_err();
    assert!(refused.to_string().contains("other objects depend on it"), "{refused}");
    let mine =
        "SELECT count(*) FROM pg_proc WHERE oid = 'public.mine(tenure.picked)'::regprocedure";
    assert_eq!(old.client().query_one(mine, &[]).unwrap().get::<_, i64>(0), 1);
    old.client().batch_execute("DROP FUNCTION public.mine").unwrap();
    old.up();
    let new = Database::new();
    new.up();
    assert_eq!(old.catalog(), new.catalog());
}

#[test]
fn a_file_of_an_earlier_release_becomes_what_a_new_one_is() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { clock: Clock::system(), limits: Limits::default() };
    let schema = |file: &Path| -> Vec<String> {
        let connection = rusqlite::Connection::open(file).unwrap();
        let mut lines = connection
            .prepare(
                "SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_schema
                 UNION ALL SELECT 'version ' || version || name || checksum || min_client
                   FROM tenure_migrations ORDER BY 1",
            )
            .unwrap();
        lines.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let new = directory.path().join("new.db");
    drop(Sqlite::open(&new, &options).unwrap());
    for (at, dump) in versions("sqlite", ".sql").into_iter().enumerate() {
        let old = directory.path().join(format!("{at}.db"));
        let text = std::fs::read_to_string(&dump).unwrap();
        rusqlite::Connection::open(&old).unwrap().execute_batch(&text).unwrap();
        let mut store = Sqlite::open(&old, &options).unwrap();
        assert_eq!(schema(&old), schema(&new), "{dump:?}");
        let states = store.overview().unwrap().lines;
        let queued: u64 = states.iter().map(|line| line.ready + line.waiting).sum();
        let dead: u64 = states.iter().map(|line| line.dead).sum();
        assert_eq!((queued, dead), (3, 1), "{states:?}");
        assert_eq!(work_off(&mut store), 2, "its jobs are still there");
        assert!(store.check(None, 100).unwrap().wrong.is_empty());
    }
}
