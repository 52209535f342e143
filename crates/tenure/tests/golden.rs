//! The JSON that programs read, compared with the files in `golden/`: a field that is added, renamed
//! or spelled in another way shows as a difference.
//!
//! If a change is meant, write the files anew and look at the difference:
//!
//! ```sh
//! TENURE_RENEW_GOLDEN=1 cargo test -p tenure --all-features --test golden
//! ```

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tenure::engine::inspect::{
    EffectView, Identity, JobDetail, JobOutcome, LeaseView, Overview, OverviewLine, QueueSettings,
    Raise, Rule, TimelineEntry, WorkerView, Wrong,
};
use tenure::engine::job::{
    JobId, JobRecord, Json, Name, NewJob, Progress, RetryPolicy, State, Tenant,
};
use tenure::engine::lease::{Token, WorkerId};
use tenure::engine::ledger::{EffectRecord, Standing, effect_name};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::migrate::{self, Status};
use tenure::engine::store::{Changed, Enqueued, Resolved, Verdict};
use tenure::{Timestamp, json};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
}

fn name(text: &str) -> Name {
    Name::check("name", text).unwrap()
}

fn text(json: &str) -> Json {
    Json::check("json", json, 1_000).unwrap()
}

fn worker(id: &str) -> WorkerId {
    WorkerId::check(id).unwrap()
}

/// A job of which nothing is left out.
fn job() -> JobRecord {
    let mut job = NewJob::new(name("send_email"), text("{\"to\":\"ann\",\n \"n\":1.10}"))
        .record(JobId(7), at(0));
    job.state = State::Running;
    job.queue = name("mail");
    job.tenant = Tenant::check("acme").unwrap();
    job.priority = -1;
    job.run_at = at(5);
    job.token = Token((1 << 40) + 3);
    job.attempt = 2;
    job.crashes = 1;
    job.retry = RetryPolicy::List { ms: vec![100, 200].into() };
    job.max_runtime_ms = Some(60_000);
    job.key = Some("welcome-7".into());
    job.extras.trace = Some("00-ab-cd-01".into());
    job.extras.tags = vec![name("red"), name("blue")];
    job.parent = Some(JobId(6));
    job.worker = Some(worker("host-1"));
    job.started_at = Some(at(10));
    job.leased_at = Some(at(20));
    job.lease_until = Some(at(50));
    job.progress = Some(Progress::new(0.4, "page 4 of 10"));
    job
}

/// A job of which as much as possible is left out.
fn plain_job() -> JobRecord {
    NewJob::new(name("hello"), text("null")).record(JobId(1), at(0))
}

fn ended_job() -> JobRecord {
    let mut job = plain_job();
    job.state = State::Dead;
    job.finished_at = Some(at(60));
    job.result = Some(text("[1, 2]"));
    job.reason = Some("no such address".into());
    job
}

fn timeline() -> [TimelineEntry; 2] {
    let lapse = TimelineEntry {
        job: JobId(7),
        at: at(9),
        verb: Verb::Lapse,
        refused: false,
        token: Token(1),
        attempt: 1,
        worker: Some(worker("host-1")),
        from: Some(at(5)),
        became: State::Queued,
        note: Some("its lease was over".into()),
        earlier: 20,
    };
    let refused = TimelineEntry {
        verb: Verb::Complete,
        refused: true,
        worker: None,
        from: None,
        note: None,
        earlier: 0,
        became: State::Running,
        ..lapse.clone()
    };
    [lapse, refused]
}

fn effects() -> [EffectView; 2] {
    let doubtful = EffectView {
        effect: EffectRecord {
            job: JobId(7),
            name: effect_name("charge").unwrap(),
            standing: Standing::Open,
            token: Token(1),
            opened_at: at(6),
            ended_at: None,
            result: None,
            note: None,
        },
        in_doubt: true,
        state: State::Parked,
        kind: name("send_email"),
        tenant: Tenant::check("acme").unwrap(),
    };
    let mut committed = doubtful.clone();
    committed.effect.standing = Standing::Committed;
    committed.effect.ended_at = Some(at(8));
    committed.effect.result = Some(text("{\"receipt\": \"r-42\"}"));
    committed.effect.note = Some(EffectRecord::DECIDED.into());
    committed.in_doubt = false;
    [doubtful, committed]
}

fn identity() -> Identity {
    let raise = Raise { epoch: 1, at: at(2), reason: "volume snapshot of Monday".into() };
    Identity { installation: uuid::Uuid::from_u128(0x1234_5678), epoch: 1, raises: vec![raise] }
}

fn queues() -> [QueueSettings; 2] {
    let open = QueueSettings::default_for(name("default"));
    let paused =
        QueueSettings { paused_at: Some(at(1)), ..QueueSettings::default_for(name("mail")) };
    [open, paused]
}

fn overview() -> Overview {
    let empty = OverviewLine::empty(name("default"), Tenant::default());
    let busy = OverviewLine {
        ready: 1,
        waiting: 2,
        running: 3,
        parked: 4,
        dead: 5,
        oldest_wait_ms: Some(6_000),
        succeeded_last_minute: 7,
        died_last_minute: 8,
        ..OverviewLine::empty(name("mail"), Tenant::check("acme").unwrap())
    };
    Overview { at: at(0), lines: vec![empty, busy] }
}

fn lease() -> LeaseView {
    LeaseView {
        job: JobId(7),
        kind: name("send_email"),
        token: Token(3),
        worker: worker("host-1"),
        started_at: at(10),
        until: at(40),
    }
}

fn workers() -> [WorkerView; 2] {
    let every = WorkerView {
        worker: worker("host-1"),
        queues: vec![name("default"), name("mail")],
        kinds: None,
        since: at(0),
        is_alive: Some(true),
    };
    let some =
        WorkerView { kinds: Some(vec![name("send_email")]), is_alive: None, ..every.clone() };
    [every, some]
}

fn migrations() -> Vec<Status> {
    use migrate::MigrationState::{Applied, Differs, NeedsUpgrade, Newer, Pending};
    let standings = [Applied(at(0)), Differs(at(1)), Newer(at(2)), NeedsUpgrade(at(3)), Pending];
    let status = |(version, standing)| Status { version, name: "first".into(), standing };
    (1..).zip(standings).map(status).collect()
}

#[test]
fn jobs_are_spelled_as_they_were() {
    let jobs = [job(), plain_job(), ended_job()];
    compare("jobs", &jobs.iter().map(json::job).collect::<Vec<_>>());
    let detail = JobDetail { job: job(), timeline: timeline().into() };
    compare("job_detail", &json::detail(&detail, &effects(), &identity()));
    compare("timeline", &timeline().iter().map(json::timeline_entry).collect::<Vec<_>>());
    let of = |state| JobOutcome { state, result: None, reason: None };
    let outcomes = [
        JobOutcome { result: Some(text("{\"n\": 7}")), ..of(State::Succeeded) },
        JobOutcome { reason: Some("no such address".into()), ..of(State::Dead) },
        of(State::Queued),
    ];
    compare("outcomes", &outcomes.iter().map(json::outcome).collect::<Vec<_>>());
    let (effects, identity) = (effects(), identity());
    let effects: Vec<_> = effects.iter().map(|view| json::effect(view, &identity)).collect();
    compare("effects", &effects);
}

#[test]
fn the_store_is_spelled_as_it_was() {
    compare("queues", &queues().iter().map(json::queue).collect::<Vec<_>>());
    compare("overview", &json::overview(&overview(), &queues()));
    compare("lease", &json::lease(&lease()));
    compare("workers", &workers().iter().map(json::worker).collect::<Vec<_>>());
    compare("identity", &json::identity(&identity()));
    compare("migrations", &migrations().iter().map(json::migration).collect::<Vec<_>>());
    let wrong = Wrong { job: JobId(7), rule: Rule::I11, what: "its lease is over".into() };
    compare("checked", &json::checked(12, &[wrong]));
    let findings = [
        json::finding("journal", "write-ahead log", None),
        json::finding("clock", "5s ahead", Some("set the clock")),
    ];
    compare("findings", &findings);
}

#[test]
fn answers_are_spelled_as_they_were() {
    let verdicts = [
        Verdict::Answered(Enqueued::Created(JobId(3))),
        Verdict::Answered(Enqueued::Existing(JobId(2))),
        Verdict::Answered(Enqueued::Conflict(JobId(1))),
        Verdict::Failed,
        Verdict::NotSent,
    ];
    compare("enqueued", &verdicts.map(json::verdict));
    let changed = [Changed::Applied, Changed::Refused(State::Running), Changed::NotFound];
    compare("changed", &changed.map(|changed| json::changed(JobId(7), changed)));
    compare("tally", &json::tally(3));
    let resolved = [
        Resolved::Applied(State::Queued),
        Resolved::NotInDoubt(Standing::Committed),
        Resolved::Running,
        Resolved::Succeeded,
        Resolved::NoSuchEffect,
        Resolved::NotFound,
    ];
    let charge = effect_name("charge").unwrap();
    let resolved: Vec<_> =
        resolved.iter().map(|resolved| json::resolved(JobId(7), &charge, *resolved)).collect();
    compare("resolved", &resolved);
    compare("epoch_raised", &json::raised(0, 7, "an operator said so"));
    let gap = Duration::from_millis;
    compare("guard_gap", &json::guard_gap(gap(1_500), gap(300)));
    compare("migrated", &json::migrated(&migrations()[..1], Some("GRANT …")));
}

#[cfg(feature = "postgres")]
#[test]
fn answers_of_a_server_are_spelled_as_they_were() {
    use tenure::engine::store::postgres::{Contents, Durability};

    compare("durability", &json::durability(Durability::On, Durability::Off));
    compare("removed", &json::removed(&Contents { live: 2, ended: 5 }));
}

#[test]
fn every_file_belongs_to_a_shape() {
    let here = include_str!("golden.rs");
    let shapes: BTreeSet<_> =
        here.split("compare(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    for entry in std::fs::read_dir(directory()).unwrap() {
        let file = entry.unwrap().path();
        let is_known =
            file.file_stem().and_then(OsStr::to_str).is_some_and(|it| shapes.contains(it));
        assert!(is_known, "{} belongs to no shape; delete it", file.display());
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Compares a value with the file of its shape.
fn compare(shape: &str, value: &impl Serialize) {
    let file = directory().join(shape).with_extension("json");
    let now = serde_json::to_string_pretty(value).unwrap() + "\n";
    if std::env::var_os("TENURE_RENEW_GOLDEN").is_some() {
        std::fs::write(&file, &now).unwrap();
        return;
    }
    let before = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        before == now,
        "{shape} is spelled in another way than {}.\nBefore:\n{before}\nNow:\n{now}\n\
         Programs read this. If the change is meant, write the files anew, and say so in \
         CHANGELOG.md:\nTENURE_RENEW_GOLDEN=1 cargo test -p tenure --all-features --test golden",
        file.display()
    );
}
