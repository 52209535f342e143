//! Tests of a whole comparison (a script takes the place of the adapter), of the manifests, and of
//! the targets. None of them installs anything from a registry.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::report::{Subject, Work};
use super::table::{letters, versions};
use super::*;

/// An adapter that answers at once. `$1` is the measure, `$2` and `$3` are numbers of jobs.
const GOOD: &str = r#"#!/bin/sh
echo "a library says hello" >&2
all=$(($2 + $3))
case $1 in
    process) seconds='"process":0.5,"enqueue_bulk":0.25' pickups= ;;
    idle_pickup) seconds= pickups=1,2,9 ;;
    *) seconds="\"$1\":0.5" pickups= ;;
esac
test -n "$PEER_FILE" || exit 4
echo "{\"version\":\"9.9\",\"settings\":\"fast\",\"seconds\":{$seconds},\"pickups_ms\":[$pickups],
\"enqueued\":$all,\"once\":$all,\"again\":0}" | tr -d '\n'
"#;

/// Inserted at the top of `GOOD`. With 16 callers one job is lost, and the measure of the idle
/// worker fails.
const BAD: &str = r#"
if [ "$1" = enqueue_16 ]; then
    echo '{"version":"9.9","settings":"","seconds":{},"pickups_ms":[],"enqueued":210,"once":209,"again":0}'
    exit 0
fi
if [ "$1" = idle_pickup ]; then echo "no such table" >&2; exit 1; fi
"#;

fn huey() -> &'static Peer {
    PEERS.iter().find(|peer| peer.name == "huey").unwrap()
}

/// Compares with a script in the place of huey's adapter.
async fn compared(script: &str, rounds: u32) -> Vec<(&'static str, Rounds)> {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("peer");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let plan = PeerPlan {
        only: vec!["huey".to_owned()],
        rounds,
        quick: true,
        directory: directory.path().to_owned(),
        program: Program { path: "/nowhere".into(), word: "" },
    };
    let ground = || Arc::new(Ground::prepare(&On::Temporary).unwrap());
    let grounds = Grounds { postgres: ground(), sqlite: ground() };
    let start = install::Start::of(program, directory.path());
    let mut read = Rounds::default();
    let progress = Arc::new(Progress::default());
    in_rounds(&plan, &grounds, &progress, &[(huey(), start)], &mut read).await.unwrap();
    vec![("huey", read)]
}

#[tokio::test]
async fn an_adapter_is_measured_in_each_round_with_its_version_and_marks() {
    let (_, read) = compared(GOOD, 2).await.remove(0);
    let lines = read.lines();
    let shown: Vec<_> = lines.iter().map(|line| (line.work, line.median)).collect();
    let expected = [
        ("process", 2_000.0),
        ("enqueue_bulk", 4_000.0),
        ("enqueue_1", 100.0),
        ("enqueue_16", 320.0),
        ("idle_pickup p50", 2.0),
        ("idle_pickup p99", 9.0),
    ];
    assert_eq!(shown, expected);
    assert!(lines.iter().all(|line| line.values.len() == 2 && line.version == "9.9"));
    assert_eq!((lines[0].store, lines[0].letters().as_str()), ("SQLite", "D F"));
    assert_eq!(lines[0].settings, "1,000 jobs, fast");
    assert_eq!(read.failures(), []);
}

#[tokio::test]
async fn an_adapter_that_loses_a_job_or_fails_is_reported_once_and_the_rest_is_measured() {
    let script = GOOD.replacen('\n', &format!("\n{BAD}"), 1);
    let (_, read) = compared(&script, 3).await.remove(0);
    let works: Vec<_> = read.lines().iter().map(|line| line.work).collect();
    assert_eq!(works, ["process", "enqueue_bulk", "enqueue_1"]);
    let failure = |doing, why: &str| Failure { peer: "huey", doing, why: why.to_owned() };
    let lost = "of 210 jobs, it enqueued 210; 209 ran exactly once, 0 more than once, 1 never";
    let [sixteen, idle] = read.failures() else { panic!("{:?}", read.failures()) };
    assert_eq!(*sixteen, failure("enqueue_16", lost));
    assert_eq!(idle.doing, "idle_pickup");
    assert!(idle.why.ends_with("failed (exit status: 1): no such table"), "{}", idle.why);
}

#[test]
fn a_name_that_is_no_peer_is_refused_with_what_to_do() {
    let plan = |only: &str| PeerPlan {
        only: vec![only.to_owned()],
        rounds: 1,
        quick: true,
        directory: PathBuf::new(),
        program: Program { path: PathBuf::new(), word: "" },
    };
    let error = plan("sidekiq").check().unwrap_err();
    assert_eq!(error, "there is no peer \"sidekiq\"; `tenure bench peers --list` shows them");
    for known in [TENURE, RAW, "pg-boss"] {
        plan(known).check().unwrap();
    }
}

#[test]
fn every_manifest_names_exact_versions_and_nothing_else() {
    let is_exact = |version: &str| {
        version.starts_with(|c: char| c.is_ascii_digit())
            && version.split('.').count() >= 3
            && version.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c))
    };
    for (at, peer) in PEERS.iter().enumerate() {
        let (_, manifest) = peer.manifest;
        let pinned: Vec<_> = versions(peer.language, manifest).collect();
        assert!(pinned.iter().all(|(_, version)| is_exact(version)), "{}: {pinned:?}", peer.name);
        // `versions` skips a line in which it finds no exact version, so the lines must be counted
        // too.
        let dependencies = match peer.language {
            Language::Node => {
                let read: serde_json::Value = serde_json::from_str(manifest).unwrap();
                read["dependencies"].as_object().unwrap().len()
            }
            Language::Python => manifest.lines().count(),
            Language::Rust => {
                let (_, listed) = manifest.split_once("[dependencies]\n").unwrap();
                listed.lines().count()
            }
        };
        assert_eq!(pinned.len(), dependencies, "{}: {pinned:?}", peer.name);
        assert!(is_exact(peer.version()), "{}: {}", peer.name, peer.version());
        assert!(PEERS[..at].iter().all(|before| before.name != peer.name), "{}", peer.name);
    }
}

#[test]
fn the_letters_of_marks_are_told_apart() {
    assert_eq!(letters(&Mark::ALL), "D F P");
    assert_eq!(letters(&[]), "");
}

/// Figures of one round.
fn lines(figures: &[(Subject, Store, Work, f64)]) -> Vec<Line> {
    let mut read = Rounds::default();
    let found = figures
        .iter()
        .map(|(subject, store, work, value)| Found::sample(*subject, *store, *work, *value));
    read.found(found.collect());
    read.lines()
}

#[test]
fn the_best_comes_first_whatever_the_settings_of_its_server() {
    let redis = |name: &str| PEERS.iter().position(|peer| peer.name == name).unwrap();
    let line = |at: usize, value| (Subject::Peer(at), PEERS[at].store, Work::Process, value);
    let lines = lines(&[line(redis("celery"), 8.0), line(redis("bullmq"), 9.0), line(0, 1.0)]);
    let order: Vec<_> = lines.iter().map(|line| (line.store, line.subject)).collect();
    let expected = [("PostgreSQL", "graphile-worker"), ("Redis", "bullmq"), ("Redis", "celery")];
    assert_eq!(order, expected);
}

fn verdict(lines: &[Line], what: &str, needs: &str) -> (String, String, Outcome) {
    let all = targets::judge(lines);
    let verdict = all.into_iter().find(|it| it.what == what && it.needs == needs).unwrap();
    (verdict.against, verdict.shown, verdict.outcome)
}

#[test]
fn a_target_compares_with_the_best_peer_on_the_same_store() {
    let (fast, slow) = (Subject::Peer(0), Subject::Peer(1));
    let lines = lines(&[
        (Subject::Default, Store::Postgres, Work::Process, 120.0),
        (Subject::Tuned, Store::Postgres, Work::Process, 110.0),
        (slow, Store::Postgres, Work::Process, 50.0),
        (fast, Store::Postgres, Work::Process, 100.0),
        (Subject::Peer(2), Store::Redis { settings: &[] }, Work::Process, 900.0),
        (Subject::Default, Store::Postgres, Work::Pickup50, 1.0),
        (slow, Store::Postgres, Work::Pickup50, 2.0),
        (fast, Store::Postgres, Work::Pickup50, 4.0),
    ]);
    let (against, shown, outcome) = verdict(&lines, "PostgreSQL, process, default", ">= 1.10");
    assert_eq!((against.as_str(), shown.as_str()), ("graphile-worker, 100", "1.20"));
    assert_eq!(outcome, Outcome::Pass);
    let (_, shown, outcome) = verdict(&lines, "PostgreSQL, process, tuned", ">= 1.20");
    assert_eq!((shown.as_str(), outcome), ("1.10", Outcome::Miss));
    let (against, shown, outcome) = verdict(&lines, "PostgreSQL, idle pick-up p50", "<= 0.80");
    assert_eq!((against.as_str(), shown.as_str()), ("pg-boss, 2.00", "0.50"));
    assert_eq!(outcome, Outcome::Pass);
}

#[test]
fn a_target_without_one_of_its_figures_is_not_measured() {
    let own = (Subject::Default, Store::Sqlite, Work::Process, 40_000.0);
    let peer = (Subject::Peer(0), Store::Postgres, Work::Process, 1.0);
    let lines = lines(&[own, peer]);
    let (_, shown, outcome) = verdict(&lines, "SQLite, process, default", ">= 30,000");
    assert_eq!((shown.as_str(), outcome), ("40,000", Outcome::Pass));
    for what in ["SQLite, process, tuned", "PostgreSQL, process, default"] {
        let all = targets::judge(&lines).into_iter().filter(|it| it.what == what);
        assert!(all.into_iter().all(|it| it.outcome == Outcome::NotMeasured), "{what}");
    }
    assert_eq!(targets::judge(&[]).len(), 17);
}
