//! The examples work as described. Each is run as its reader would run it, and its output is
//! checked.
//!
//! Cargo builds them together with this test whenever it builds all targets; `cargo test --test
//! examples` alone does not.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// The program of an example, in the directory next to this test's.
fn example(name: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let profile = this.ancestors().nth(2).unwrap();
    let program: PathBuf = profile.join("examples").join(name);
    assert!(program.exists(), "{name} is not built; run: cargo build -p tenure --examples");
    let mut command = Command::new(program);
    command.env_remove("TENURE_DB").stdin(Stdio::null());
    command
}

/// What a worker prints once if nothing receives its events.
const UNHEARD: &str = "tenure: nothing listens to the events of this worker; set up a subscriber of `tracing`, or call Worker::observe\n";

/// Runs it, checks that it succeeds, and returns its stdout and stderr.
fn ran(command: &mut Command) -> (String, String) {
    let output = command.output().unwrap();
    let [said, complained] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    (said, complained)
}

/// Runs it, checks that it succeeds and that its stderr is empty, and returns its stdout.
fn printed(command: &mut Command) -> String {
    let (said, complained) = ran(command);
    assert_eq!(complained.replace(UNHEARD, ""), "");
    said
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).collect()
}

#[test]
fn the_first_example_of_the_readme_works_also_when_it_is_run_again() {
    let program = include_str!("../examples/quickstart.rs");
    let (_, program) = program.split_once("does\")]\n\n").unwrap();
    assert!(include_str!("../../../README.md").contains(program), "they differ");
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let (said, events) = ran(example("quickstart").current_dir(&directory));
        assert_eq!(lines(&said), ["job 1 says: Hello, Ann!"]);
        assert!(
            events.starts_with("worker_started ") && events.contains("\nworker_exit "),
            "{events}"
        );
    }
}

#[test]
fn a_worker_whose_events_go_nowhere_says_so_once() {
    let (_, complained) = ran(&mut example("steps"));
    assert_eq!(complained, UNHEARD);
}

#[test]
fn steps_are_not_repeated_by_the_retry() {
    let expected = [
        "attempt 1 begins",
        "downloading holiday",
        "shrinking holiday.mov, which takes an hour",
        "attempt 2 begins",
        "uploading holiday.mp4",
        "published at https://videos.example/holiday.mp4",
        "the timeline: attempt 1 ended with retry: the network is down",
    ];
    assert_eq!(lines(&printed(&mut example("steps"))), expected);
}

const SHOP: [&str; 3] = [
    "a lamp: orders 1, jobs 1",
    "no desk in stock: orders 1, jobs 1",
    "the lamp was shipped 1 time; jobs left: 0",
];

#[test]
fn an_order_and_its_job_come_and_go_together_on_sqlite() {
    assert_eq!(lines(&printed(&mut example("transactional"))), SHOP);
}

#[cfg(feature = "postgres")]
#[test]
fn an_order_and_its_job_come_and_go_together_on_postgres() {
    let shop = postgres::Shop::new();
    assert_eq!(lines(&printed(example("transactional").env("TENURE_DB", &shop.url))), SHOP);
}

#[test]
fn a_payment_in_doubt_is_charged_once_whatever_it_has_chosen() {
    let said = printed(&mut example("effects"));
    let doubt = "park: the effect charge is in doubt: the attempt with token 1 wrote its intent";
    let expected = [
        "a worker charged three payments and died (exit status: 9) before it recorded one",
        "at the bank: requests to charge: 3, questions: 0, charges made: 3",
        "resend: receipt for 100 cents",
        "verify: receipt for 200 cents",
        doubt,
        "at the bank: requests to charge: 4, questions: 1, charges made: 3",
        "a person looked, and resolved job 3 as committed: Applied(Queued)",
        "park, once a person had decided: receipt for 300 cents",
        "at the bank: requests to charge: 4, questions: 2, charges made: 3",
    ];
    let said = lines(&said);
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (line, beginning) in said.iter().zip(expected) {
        assert!(line.starts_with(beginning), "{line}\n{beginning}");
    }
}

#[test]
fn a_worker_that_is_told_to_end_gives_back_what_it_cannot_finish() {
    let mut child = example("shutdown").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    while !said.last().is_some_and(|line: &String| line.ends_with("a letter, page 1 of 3")) {
        said.push(output.next().expect("it prints until it is told to end"));
    }
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM).unwrap();
    said.extend(output);
    assert!(child.wait().unwrap().success());

    let said: Vec<&str> = said.iter().map(|line| line.trim()).collect();
    let at = |line: &str| {
        said.iter().position(|said| *said == line).unwrap_or_else(|| panic!("{line}: {said:#?}"))
    };
    let ended = at("the worker has ended (Shutdown)");
    assert!(at("a letter, page 3 of 3") < ended, "it had its grace");
    assert_eq!(said[ended + 1], "the letter: done (attempts: 1)");
    let novel = "the novel: given back, and no attempt was counted (attempts: 0)";
    assert_eq!(said[ended + 2..ended + 4], [novel, "the next start"]);
    assert!(at("a novel, page 1 of 20") < ended && ended < at("a novel, page 20 of 20"));
    // A page that was printed but not yet remembered when the handler was stopped is printed again:
    // one page at most.
    let pages = said.iter().filter(|line| line.starts_with("a novel, page")).count();
    assert!((20..=21).contains(&pages), "{pages}");
    assert_eq!(said.last(), Some(&"the novel: done (attempts: 1)"));
}

#[test]
fn a_pipeline_whose_worker_is_killed_pays_about_once() {
    let said = printed(&mut example("ai_pipeline"));
    let number_after = |word: &str, text: &str| -> f64 {
        let rest = text.split_once(word).unwrap_or_else(|| panic!("no {word:?}: {said}")).1;
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert!(said.contains("killed the worker with -9"), "{said}");
    assert!(said.contains("\n24 documents done\n"), "{said}");
    let made = number_after("\n24 documents done\n", &said);
    let without = number_after("would have made at least ", &said);
    assert!(made < without, "{said}");
    let paid = number_after("cents for 384: paid ", &said);
    assert!((1.0..=1.2).contains(&paid), "{said}");
}

/// A database with the schema, which is dropped after the test.
#[cfg(feature = "postgres")]
mod postgres {
    use postgres::{Client, NoTls};
    use tenure::engine::store::postgres::{Migrations, Roles, ServerAddress};

    pub(super) struct Shop {
        pub(super) url: String,
        server: String,
        name: String,
    }

    impl Shop {
        pub(super) fn new() -> Shop {
            let server = std::env::var("TENURE_TEST_POSTGRES").expect(
                "no PostgreSQL to test on; run `cargo xtask test`, or `cargo xtask postgres COMMAND`",
            );
            let name = format!("tenure_example_{}", std::process::id());
            let (base, query) = server.split_once('?').unwrap_or((&server, ""));
            let host = base.rsplit_once('/').map_or(base, |(host, _)| host);
            let url = format!("{host}/{name}?{query}");
            let shop = Shop { url, server, name };
            shop.on_server("DROP DATABASE IF EXISTS").expect("what an earlier run has left can go");
            shop.on_server("CREATE DATABASE").expect("a database can be made");
            let address = ServerAddress::parse(&shop.url).unwrap();
            Migrations::connect(&address).unwrap().up(Roles::Leave).unwrap();
            shop
        }

        fn on_server(&self, what: &str) -> Result<(), postgres::Error> {
            let mut client = Client::connect(&self.server, NoTls)?;
            client.batch_execute(&format!("{what} {}", self.name))
        }
    }

    impl Drop for Shop {
        fn drop(&mut self) {
            // A failed test may still be connected, and has already reported its failure.
            let dropped = self.on_server("DROP DATABASE");
            assert!(dropped.is_ok() || std::thread::panicking(), "{dropped:?}");
        }
    }
}
