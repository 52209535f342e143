//! The schema on a server: created, updated by many processes at once, repaired, refused and
//! removed.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use serde_json::json;
use shell::{Ran, Shell, claim, settle_next};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::postgres::{Postgres, PostgresOptions, ServerAddress};

const INSTALLATION: &str = "SELECT installation FROM tenure.meta";

/// Runs a command on another address.
fn at(shell: &Shell, db: &str, args: &[&str]) -> Ran {
    shell.run(&[&["--db", db], args].concat())
}

/// Commands that use the store: all must refuse an incomplete schema.
const OPENERS: [&[&str]; 4] =
    [&["stats"], &["enqueue", "k"], &["jobs", "list", "--json"], &["doctor"]];

#[track_caller]
fn refuses(shell: &Shell, says: &str) {
    for args in OPENERS {
        let ran = shell.run(args);
        ran.refused(3, says);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
}

// ── up ───────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_database_without_the_schema_says_how_to_make_it() {
    let shell = Shell::before_migrating();
    refuses(&shell, "has no schema tenure of Tenure's; make it with: tenure migrate up");
    let status = shell.run(&["migrate", "status"]);
    assert_eq!(status.stdout.matches("pending").count(), 3, "{status:?}");
    assert_eq!(shell.database().value("SELECT to_regnamespace('tenure') IS NULL"), "true");
}

#[test]
fn up_answers_with_the_rights_that_others_need_as_sql_that_runs() {
    let shell = Shell::before_migrating();
    let up = shell.run(&["migrate", "up"]);
    assert_eq!(up.code, 0, "{up:?}");
    assert!(up.stderr.contains("applied 3 of 3 migrations"), "{up:?}");
    assert!(up.stderr.contains("run them as the owner:"), "{up:?}");

    let (database, mut sql) = (shell.database(), up.stdout);
    let roles = ["worker", "enqueuer", "reader"].map(|name| (name, database.role(name)));
    for (name, role) in &roles {
        sql = sql.replace(&format!("tenure_{name}"), role);
    }
    database.execute(&sql);
    assert_eq!(at(&shell, &database.url_as(&roles[1].1), &["enqueue", "k"]).stdout, "1\n");

    let again = shell.json(&["migrate", "up"]);
    assert!(again["grants"].as_str().unwrap().contains("GRANT USAGE ON SCHEMA"), "{again}");
    assert_eq!(again["migrations"][2]["name"], json!("functions"));
    assert!(shell.run(&["migrate", "up"]).stderr.contains("is up to date"));
}

#[test]
fn each_role_may_do_its_own_work_and_no_more() {
    let shell = Shell::before_migrating();
    let database = shell.database();
    // Roles belong to the whole server, so these are named after a schema that no other test has.
    let schema = format!("{} Jobs-2", database.value("current_database()"));
    let home = database.url_with(&format!("schema={}", schema.replace(' ', "%20")));
    let up = at(&shell, &home, &["migrate", "up", "--roles"]);
    assert!(up.code == 0 && !up.stdout.contains("GRANT"), "{up:?}");
    at(&shell, &home, &["migrate", "up", "--roles"]).refused(0, "is up to date");

    let member = |group: &str| {
        let role = database.role(&format!("a_{group}"));
        database.execute(&format!("GRANT \"{schema}_{group}\" TO {role}"));
        home.replace("tenure@", &format!("{role}@"))
    };
    let (worker, enqueuer, reader) = (member("worker"), member("enqueuer"), member("reader"));

    assert_eq!(at(&shell, &enqueuer, &["enqueue", "k"]).stdout, "1\n");
    let mut store =
        Postgres::open(&ServerAddress::parse(&worker).unwrap(), &PostgresOptions::default())
            .unwrap();
    settle_next(&mut store, Outcome::Bury { reason: "no".into() });
    for args in [&["jobs", "show", "1"][..], &["stats"], &["dead", "list"], &["queues", "list"]] {
        assert_eq!(at(&shell, &reader, args).code, 0, "{args:?}");
    }
    let doctor = at(&shell, &reader, &["doctor"]);
    assert!(doctor.stdout.contains("1 dead job") && doctor.code == 1, "{doctor:?}");

    let grant = |group: &str| format!("GRANT \"{schema}_{group}\" TO ");
    for (role, args, next) in [
        (&worker, &["jobs", "cancel", "1"][..], "who owns the schema: connect as that role".into()),
        (&worker, &["queues", "pause", "default"], "connect as that role".to_owned()),
        (&enqueuer, &["stats"], grant("reader")),
        (&reader, &["enqueue", "k"], grant("enqueuer")),
    ] {
        let ran = at(&shell, role, args);
        ran.refused(3, "this role may not ");
        ran.refused(3, &next);
    }
    assert!(at(&shell, &home, &["jobs", "show", "1"]).stdout.contains("dead"));
    at(&shell, &worker, &["migrate", "down", "--yes"]).refused(3, "belongs to ");
    database.execute(&format!(
        "DROP OWNED BY \"{schema}_worker\", \"{schema}_enqueuer\", \"{schema}_reader\""
    ));
    database.execute(&format!(
        "DROP ROLE \"{schema}_worker\", \"{schema}_enqueuer\", \"{schema}_reader\""
    ));
}

#[test]
fn many_may_bring_it_up_at_once_and_it_is_made_once() {
    let shell = Shell::before_migrating();
    let all: Vec<_> = (0..8).map(|_| shell.command(&["migrate", "up"]).spawn().unwrap()).collect();
    for child in all {
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert_eq!(shell.database().value("SELECT count(*) FROM tenure.migrations"), "2");
    let installation = shell.database().value(INSTALLATION);
    shell.ok(&["migrate", "up"]);
    assert_eq!(shell.database().value(INSTALLATION), installation);
    assert_eq!(shell.ok(&["enqueue", "k"]), "1\n");
}

#[test]
fn up_with_nothing_to_do_waits_for_nobody() {
    let shell = Shell::on_server();
    shell.ok(&["enqueue", "k"]);
    let mut other = shell.database().connect();
    let mut open = other.transaction().unwrap();
    // Another session holds every lock that an `up` could ask for, and does not release it.
    open.batch_execute(
        "LOCK TABLE tenure.jobs, tenure.done, tenure.record, tenure.job IN ROW EXCLUSIVE MODE;
         SELECT pg_advisory_xact_lock(hashtextextended('tenure schema tenure', 0))",
    )
    .unwrap();
    assert!(shell.run(&["migrate", "up"]).stderr.contains("is up to date"));
    open.rollback().unwrap();
}

#[test]
fn a_schema_from_before_the_first_version_is_refused_and_left_as_it_is() {
    let shell = Shell::on_server();
    shell.ok(&["enqueue", "k"]);
    shell.database().execute("UPDATE tenure.migrations SET name = 'kernel', checksum = 'of old'");
    refuses(&shell, "DROP SCHEMA");
    let up = shell.run(&["migrate", "up"]);
    assert!(up.stderr.contains("before the first version"), "{}", up.stderr);
}

#[test]
fn functions_are_replaced_under_open_transactions_that_use_the_tables() {
    let shell = Shell::on_server();
    shell.ok(&["enqueue", "k", "--count", "2"]);
    let mut worker = shell.database().connect();
    let mut open = worker.transaction().unwrap();
    open.batch_execute("SELECT id FROM tenure.claim('ann')").unwrap();
    shell.database().execute("UPDATE tenure.meta SET functions = 'of another binary'");
    let status = shell.ok(&["migrate", "status"]);
    assert!(status.contains("differs"), "{status}");
    assert!(shell.run(&["doctor"]).stdout.contains("if this one is newer: tenure migrate up"));
    assert!(shell.run(&["migrate", "up"]).stderr.contains("applied 1 of 3 migrations"));
    assert_eq!(claim(&mut *shell.store(), 1).len(), 1);
    open.commit().unwrap();
    assert_eq!(shell.json(&["stats"])["lines"][0]["running"], json!(2));
}

#[test]
fn functions_of_a_newer_release_are_left_in_place_unless_forced() {
    let shell = Shell::on_server();
    let functions = || shell.database().value("SELECT functions FROM tenure.meta");
    let own = functions();
    let newer = "UPDATE tenure.meta SET functions = 'of a newer binary', functions_release = functions_release + 1";
    shell.database().execute(newer);
    assert!(shell.ok(&["migrate", "status"]).contains("newer"));
    let up = shell.run(&["migrate", "up"]);
    assert!(up.code == 0 && up.stderr.contains("newer than those of this binary"), "{up:?}");
    assert!(up.stderr.contains("tenure migrate up --force"), "{up:?}");
    assert_eq!(functions(), "of a newer binary");
    assert_eq!(shell.ok(&["enqueue", "k"]), "1\n");
    assert!(shell.run(&["doctor"]).stdout.contains("is newer than this binary"));

    let forced = shell.run(&["migrate", "up", "--force"]);
    assert!(forced.stderr.contains("applied 1 of 3 migrations"), "{forced:?}");
    assert_eq!(functions(), own);
    assert!(shell.run(&["migrate", "up"]).stderr.contains("is up to date"));

    // Functions for other tables would not work with these.
    shell.database().execute(&format!("{newer}, functions_client = 99"));
    shell.run(&["migrate", "up", "--force"]).refused(3, "leave --force out");
    shell.run(&["migrate", "up"]).refused(0, "were left in place");
    assert_eq!(functions(), "of a newer binary");
    Shell::new().run(&["migrate", "up", "--force"]).refused(2, "a file has no functions");
}

#[test]
fn functions_of_an_older_release_are_replaced() {
    let shell = Shell::on_server();
    let older = "UPDATE tenure.meta SET functions = 'of an older binary', functions_release =";
    for release in ["functions_release - 1", "NULL"] {
        shell.database().execute(&format!("{older} {release}"));
        let up = shell.run(&["migrate", "up"]);
        assert!(up.stderr.contains("applied 1 of 3 migrations"), "{release}: {up:?}");
    }
}

/// The older function must be gone: two functions of one name would make the statements that grant
/// rights ambiguous.
#[test]
fn a_function_that_took_fewer_arguments_is_replaced_and_may_be_called_as_before() {
    let shell = Shell::on_server();
    let database = shell.database();
    database.execute(
        "CREATE FUNCTION tenure.page(p_state smallint, p_queue text, p_tenant text, p_kind text,
             p_before bigint, p_limit int) RETURNS SETOF tenure.record
         LANGUAGE sql AS $$ SELECT r.* FROM tenure.record r WHERE false $$;
         UPDATE tenure.meta SET functions = 'of an older binary', functions_release = 1",
    );
    shell.ok(&["migrate", "up"]);
    let pages = "SELECT count(*)::text FROM pg_proc WHERE proname = 'page'
                 AND pronamespace = 'tenure'::regnamespace";
    assert_eq!(database.value(pages), "1");
    shell.ok(&["enqueue", "k"]);
    let page = "SELECT string_agg(id::text, ' ') FROM tenure.page(NULL, NULL, NULL, 'k', 9, 9)";
    assert_eq!(database.value(page), "1");
}

#[test]
fn a_schema_under_another_name_is_a_store_of_its_own() {
    let shell = Shell::on_server();
    let other = shell.database().url_with("schema=Job%20Queue-2");
    at(&shell, &other, &["stats"]).refused(3, "has no schema Job Queue-2 of Tenure's");
    let up = at(&shell, &other, &["migrate", "up"]);
    assert!(up.stdout.contains(r#"SCHEMA "Job Queue-2" TO "Job Queue-2_worker""#), "{up:?}");
    assert_eq!(at(&shell, &other, &["enqueue", "k"]).stdout, "1\n");
    assert_eq!(shell.jobs().len(), 0);
    assert!(at(&shell, &other, &["doctor"]).stdout.contains("schema=Job%20Queue-2 opens"));
    assert_eq!(at(&shell, &other, &["migrate", "down", "--yes"]).code, 0);
    shell.ok(&["stats"]);
}

// ── down ─────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn down_is_asked_for_twice_and_removes_everything() {
    let shell = Shell::on_server();
    shell.ok(&["enqueue", "k", "--count", "3"]);
    shell.ok(&["jobs", "cancel", "1"]);
    let ask = shell.run(&["migrate", "down"]);
    ask.refused(
        1,
        "with 2 live and 1 ended jobs for good; if that is meant: tenure migrate down --yes",
    );
    assert_eq!(shell.jobs().len(), 3);

    let installation = shell.database().value(INSTALLATION);
    assert_eq!(shell.json(&["migrate", "down", "--yes"]), json!({"live": 2, "ended": 1}));
    assert_eq!(shell.database().value("SELECT to_regnamespace('tenure') IS NULL"), "true");
    assert!(shell.run(&["migrate", "down", "--yes"]).stderr.contains("nothing to remove"));

    shell.ok(&["migrate", "up"]);
    assert_eq!(shell.jobs().len(), 0);
    assert_ne!(shell.database().value(INSTALLATION), installation);
}

#[test]
fn down_removes_nothing_while_others_depend_on_it() {
    let shell = Shell::on_server();
    shell.ok(&["enqueue", "k"]);
    let database = shell.database();
    for (sql, undo, says) in [
        (
            "CREATE VIEW public.mine AS SELECT id FROM tenure.job",
            "DROP VIEW public.mine",
            "view public.mine depends on view tenure.job",
        ),
        (
            "CREATE TABLE public.mine (id bigint DEFAULT nextval('tenure.job_id'))",
            "DROP TABLE public.mine",
            "table public.mine depends on sequence tenure.job_id",
        ),
        (
            "CREATE TABLE tenure.mine (x int)",
            "DROP TABLE tenure.mine",
            "also holds what is not Tenure's, and nothing was removed: table mine",
        ),
        (
            "CREATE FUNCTION tenure.enqueue(x int) RETURNS int LANGUAGE sql AS 'SELECT x'",
            "DROP FUNCTION tenure.enqueue(int)",
            "function enqueue",
        ),
    ] {
        database.execute(sql);
        let ran = shell.run(&["migrate", "down", "--yes"]);
        ran.refused(3, says);
        ran.refused(3, "nothing was removed");
        assert_eq!(shell.jobs().len(), 1, "{sql}");
        database.execute(undo);
    }
    assert!(shell.ok(&["migrate", "down", "--yes"]).contains("with 1 live and 0 ended jobs"));
}

#[test]
fn down_gives_up_on_tables_that_are_in_use() {
    let shell = Shell::on_server();
    let mut other = shell.database().connect();
    let mut open = other.transaction().unwrap();
    open.batch_execute("LOCK TABLE tenure.jobs IN ROW EXCLUSIVE MODE").unwrap();
    shell
        .run(&["migrate", "down", "--yes"])
        .refused(3, "is busy while trying to remove the schema");
    open.rollback().unwrap();
    shell.ok(&["stats"]);
}

// ── incomplete schemas, and other programs' ──────────────────────────────────────────────────────

#[test]
fn a_lost_table_is_told_and_not_made_up_for() {
    for lost in ["jobs", "done", "migrations", "meta"] {
        let shell = Shell::on_server();
        shell.database().execute(&format!("DROP TABLE tenure.{lost} CASCADE"));
        refuses(&shell, "the schema tenure is half installed: it ");
        for args in [&["migrate", "up"][..], &["migrate", "status"]] {
            shell.run(args).refused(3, "restore the database from a backup, or begin anew with");
        }
        shell.ok(&["migrate", "down", "--yes"]);
        shell.ok(&["migrate", "up"]);
        assert_eq!(shell.ok(&["enqueue", "k"]), "1\n", "{lost}");
    }
}

#[test]
fn lost_functions_are_put_back_and_no_job_is_lost() {
    let shell = Shell::on_server();
    shell.ok(&["enqueue", "k"]);
    shell.ok(&["jobs", "cancel", "1"]);
    for lost in [
        "DROP FUNCTION tenure.claim_many",
        "DROP VIEW tenure.record CASCADE",
        "DROP TRIGGER fence ON tenure.fences",
        "DROP TYPE tenure.claim_row CASCADE",
        "DROP FUNCTION tenure.history",
        // All of them, as after a restore of the tables alone.
        "SET client_min_messages = warning; DO $$ DECLARE f record; BEGIN
             FOR f IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace
             LOOP EXECUTE format('DROP ROUTINE IF EXISTS %s CASCADE', f.name); END LOOP; END $$",
    ] {
        shell.database().execute(lost);
        refuses(&shell, "put it back with: tenure migrate up");
        assert!(shell.ok(&["migrate", "status"]).contains("pending"), "{lost}");
        shell.ok(&["migrate", "up"]);
        assert_eq!(shell.run(&["doctor"]).code, 0, "{lost}");
    }
    assert_eq!(shell.jobs().len(), 1);
}

#[test]
fn a_schema_with_the_migrations_table_alone_is_half_installed() {
    let shell = Shell::before_migrating();
    shell.database().execute(
        "CREATE SCHEMA tenure; CREATE TABLE tenure.migrations (version bigint PRIMARY KEY, name text,
         checksum text, min_client bigint, applied_at bigint)",
    );
    refuses(&shell, "half installed: it does not say what was applied");
    shell.ok(&["migrate", "down", "--yes"]);
    shell.ok(&["migrate", "up"]);
}

#[test]
fn a_schema_of_somebody_else_is_left_alone() {
    let shell = Shell::before_migrating();
    // Many programs have a table of this name.
    shell.database().execute("CREATE SCHEMA tenure; CREATE TABLE tenure.migrations (id int)");
    refuses(
        &shell,
        "is not Tenure's; it holds table migrations; choose another one with ?schema=NAME",
    );
    for args in [&["migrate", "up"][..], &["migrate", "status"], &["migrate", "down", "--yes"]] {
        shell.run(args).refused(3, "is not Tenure's");
    }
    assert_eq!(shell.database().value("SELECT count(*) FROM tenure.migrations"), "0");
}

#[test]
fn an_empty_schema_that_was_made_beforehand_is_used() {
    let shell = Shell::before_migrating();
    let owner = shell.database().role("owner");
    shell.database().execute(&format!("CREATE SCHEMA tenure AUTHORIZATION {owner}"));
    refuses(&shell, "make it with: tenure migrate up");
    // A superuser migrates on behalf of the owner: what is installed must not run with a
    // superuser's rights.
    shell.ok(&["migrate", "up"]);
    let strangers = format!(
        "SELECT count(*) FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace AND proowner <> '{owner}'::regrole"
    );
    assert_eq!(shell.database().value(&strangers), "0");
    assert_eq!(at(&shell, &shell.database().url_as(&owner), &["enqueue", "k"]).stdout, "1\n");
    assert_eq!(at(&shell, &shell.database().url_as(&owner), &["migrate", "down", "--yes"]).code, 0);
}

#[test]
fn a_schema_from_the_future_is_left_alone() {
    let shell = Shell::on_server();
    shell
        .database()
        .execute("UPDATE tenure.migrations SET version = version + 98, min_client = 99");
    for args in [&["stats"][..], &["migrate", "up"], &["migrate", "down", "--yes"]] {
        shell.run(args).refused(3, "needs a newer tenure than this one; upgrade this binary");
    }
    assert!(shell.ok(&["migrate", "status"]).contains("needs_upgrade"));
}

#[test]
fn a_schema_that_was_made_from_another_text_is_left_alone() {
    let shell = Shell::on_server();
    shell.database().execute("UPDATE tenure.migrations SET checksum = 'of another text'");
    let words = "its migration 1 (first) differs from this binary's; use the binary that this store was made with";
    refuses(&shell, words);
    for args in [&["migrate", "up"][..], &["migrate", "down", "--yes"], &["worker", "--", "cat"]] {
        shell.run(args).refused(3, words);
    }
    assert!(shell.ok(&["migrate", "status"]).contains("differs"));
}

// ── rights ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_role_that_may_not_make_a_schema_is_told_what_to_ask_for() {
    let shell = Shell::before_migrating();
    let role = shell.database().role("humble");
    let humble = shell.database().url_as(&role);
    let name = shell.database().value("current_database()");
    let ran = at(&shell, &humble, &["migrate", "up"]);
    ran.refused(3, &format!("GRANT CREATE ON DATABASE \"{name}\" TO \"{role}\""));
    shell.database().execute(&format!("GRANT CREATE ON DATABASE {name} TO {role}"));
    let elsewhere = format!("{humble}&schema={role}");
    at(&shell, &elsewhere, &["migrate", "up", "--roles"]).refused(3, "leave --roles out");
    assert_eq!(at(&shell, &humble, &["migrate", "up"]).code, 0);
    assert_eq!(at(&shell, &humble, &["enqueue", "k"]).stdout, "1\n");
    assert_eq!(at(&shell, &humble, &["migrate", "down", "--yes"]).code, 0);
    shell.database().execute(&format!("REVOKE CREATE ON DATABASE {name} FROM {role}"));
}

#[test]
fn a_role_without_rights_is_told_whom_to_ask() {
    let shell = Shell::on_server();
    let role = shell.database().role("nobody");
    let nobody = shell.database().url_as(&role);
    for args in OPENERS {
        let ran = at(&shell, &nobody, args);
        ran.refused(
            3,
            &format!("the role {role} may not use the schema tenure; ask tenure for the rights"),
        );
    }
    at(&shell, &nobody, &["migrate", "status"]).refused(3, "may not use the schema");
    at(&shell, &nobody, &["migrate", "up"]).refused(3, "belongs to tenure, not to");
    // Even with USAGE on the schema, it may call no function.
    shell.database().execute(&format!("GRANT USAGE ON SCHEMA tenure TO {role}"));
    at(&shell, &nobody, &["stats"]).refused(3, "this role may not look at the schema");
    shell.database().execute(&format!("DROP OWNED BY {role}"));
}
