//! What a worker asks about jobs and changes, and how jobs are looked up and listed.

use tenure::engine::clock;
use tenure::engine::inspect::{Current, Filter, JobOutcome, OverviewLine};
use tenure::engine::job::{JobId, Json, State};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{Claim, QueueChange, Wake};

use super::{World, ask, complete, job, key, name, promises, queries, retry, secs, tenant, worker};

fn page(w: &mut World, filter: &Filter, limit: usize) -> Vec<i64> {
    w.look().jobs(filter, limit).unwrap().iter().map(|job| job.id.0).collect()
}

fn tagged(tag: &str) -> Filter {
    Filter { tag: Some(name(tag)), ..Filter::default() }
}

fn keyed(text: &str) -> Filter {
    Filter { key: Some(key(text)), ..Filter::default() }
}

/// Brings the one due job, in either of two queues, to this end state.
fn end_as(w: &mut World, id: JobId, state: State) {
    if state == State::Cancelled {
        w.store.cancel(&[id]).unwrap();
    } else {
        let any = Claim { queues: vec![name("default"), name("bulk")], ..ask("ann", 1) };
        let fence = w.claim(&any).attempts[0].lease.fence();
        let bury = Outcome::Bury { reason: "no".into() };
        w.settle(fence, if state == State::Dead { bury } else { complete() });
    }
    assert_eq!(w.state(id), state);
}

promises! { "look":
    "G2" where_jobs_stand_is_told_by_token_and_state_alone(w) {
        let ended = w.ended(complete());
        let dead = w.ended(Outcome::Bury { reason: "no".into() });
        let id = w.put_one();
        let (_, second) = w.taken_over();
        let token = second.lease.token();
        let asked = [id, JobId(404), ended, dead, id, JobId(i64::MIN)];
        let found = w.store.current(&asked).unwrap();
        assert_eq!(found.len(), asked.len(), "one answer for each, in the order asked");
        let running = Some(Current { token, state: State::Running });
        assert_eq!((found[0], found[4]), (running, running));
        assert_eq!((found[1], found[5]), (None, None));
        for (found, id) in [(found[2], ended), (found[3], dead)] {
            let job = w.record(id);
            assert_eq!(found, Some(Current { token: job.token, state: job.state }));
        }
        assert!(w.store.current(&[]).unwrap().is_empty());
        assert!(w.store.current(&[id; 1_001]).unwrap_err().is_invalid());
    }

    "G2" a_timeline_tells_the_story_in_order(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.settle(fence, retry(secs(1)));
        w.pass(secs(1));
        let (first, second) = w.taken_over();
        w.settle(first.lease.fence(), complete());
        w.settle(second.lease.fence(), Outcome::Bury { reason: "no".into() });
        let events: Vec<_> = w.timeline(id).iter().map(|line| line.event()).collect();
        assert_eq!(events, ["retry", "lapse", "stale_write_blocked", "bury"]);
        let times: Vec<_> = w.timeline(id).iter().map(|line| line.at).collect();
        assert!(times.is_sorted());
    }

    "I11" a_wait_returns_when_something_has_changed_since_the_last_look(w) {
        let far = clock::monotonic() + secs(3_600);
        w.claim(&ask("ann", 1));
        w.put_one();
        assert_eq!(w.store.wait(far).unwrap(), Wake::Changed);
    }

    "I11" a_wait_for_nothing_ends_at_its_time(w) {
        w.claim(&ask("ann", 1));
        assert_eq!(w.store.wait(clock::monotonic()).unwrap(), Wake::TimedOut);
    }
}

queries! { "look":
    "G1" an_unknown_job_is_not_there(w) {
        assert!(w.look().job(JobId(404)).unwrap().is_none());
        assert!(w.look().job(JobId(i64::MIN)).unwrap().is_none());
    }

    "G1" what_a_job_has_come_to_is_told_without_the_rest_of_it(w) {
        assert_eq!(w.look().outcome(JobId(404)).unwrap(), None);
        let result = Json::check("result", "{\"n\":7}", 100).unwrap();
        let of = |state| JobOutcome { state, result: None, reason: None };
        let succeeded = w.ended(Outcome::Complete { result: Some(result.clone()) });
        assert_eq!(w.look().outcome(succeeded).unwrap(), Some(JobOutcome { result: Some(result), ..of(State::Succeeded) }));
        let dead = w.ended(Outcome::Bury { reason: "no".into() });
        assert_eq!(w.look().outcome(dead).unwrap(), Some(JobOutcome { reason: Some("no".into()), ..of(State::Dead) }));
        let parked = w.ended(Outcome::Park { reason: "ask Ann".into() });
        assert_eq!(w.look().outcome(parked).unwrap(), Some(JobOutcome { reason: Some("ask Ann".into()), ..of(State::Parked) }));
        let cancelled = w.put_one();
        w.store.cancel(&[cancelled]).unwrap();
        assert_eq!(w.look().outcome(cancelled).unwrap().unwrap().state, State::Cancelled);
        let waiting = w.put(job("work").delay(secs(9)));
        assert_eq!(w.look().outcome(waiting).unwrap(), Some(of(State::Queued)));
        let running = w.put_one();
        w.take("ann");
        assert_eq!(w.look().outcome(running).unwrap(), Some(of(State::Running)));
    }

    "G1" pages_come_newest_first_and_go_on_where_the_last_one_ended(w) {
        for _ in 0..3 {
            w.ended(complete());
        }
        for _ in 0..4 {
            w.put_one();
        }
        let mut filter = Filter::default();
        let mut seen = Vec::new();
        loop {
            let next = page(w, &filter, 3);
            let Some(last) = next.last() else { break };
            filter.before = Some(JobId(*last));
            seen.extend(next);
        }
        assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    }

    "I15" a_page_shows_what_its_filter_says_and_nothing_else(w) {
        let a = w.put(job("mail").tenant(tenant("a")));
        let b = w.put(job("mail").tenant(tenant("b")).queue(name("bulk")));
        let c = w.put(job("copy").delay(secs(9)));
        let parked = w.ended(Outcome::Park { reason: "x".into() });
        let _ = parked;
        let filter = Filter::default;
        assert_eq!(page(w, &Filter { tenant: Some(tenant("a")), ..filter() }, 10), [a.0]);
        assert_eq!(page(w, &Filter { tenant: Some(tenant("")), ..filter() }, 10), [4, c.0]);
        assert_eq!(page(w, &Filter { queue: Some(name("bulk")), ..filter() }, 10), [b.0]);
        assert_eq!(page(w, &Filter { kind: Some(name("mail")), ..filter() }, 10), [b.0, a.0]);
        let both = Filter { kind: Some(name("mail")), queue: Some(name("default")), ..filter() };
        assert_eq!(page(w, &both, 10), [a.0]);
        assert!(page(w, &tagged("red"), 10).is_empty() && page(w, &keyed("k"), 10).is_empty());
        assert!(page(w, &filter(), 0).is_empty());
        assert!(w.look().jobs(&filter(), 1_001).unwrap_err().is_invalid());
    }

    "G1" jobs_are_found_by_a_tag(w) {
        let red = w.put(job("mail").tags(vec![name("red")]).unwrap());
        let both = w.put(job("mail").tags(vec![name("blue"), name("red")]).unwrap());
        w.put(job("mail").trace("red").unwrap());
        w.put(job("red").tenant(tenant("red")).key(key("red")));
        assert_eq!(page(w, &tagged("red"), 10), [both.0, red.0]);
        assert_eq!(page(w, &tagged("red"), 1), [both.0]);
        assert_eq!(page(w, &Filter { before: Some(both), ..tagged("red") }, 10), [red.0]);
        assert_eq!(page(w, &tagged("blue"), 10), [both.0]);
        // A tag is compared whole.
        assert!(page(w, &tagged("re"), 10).is_empty() && page(w, &tagged("trace"), 10).is_empty());
        w.put(job("copy").tags(vec![name("red")]).unwrap());
        let mails = Filter { kind: Some(name("mail")), ..tagged("red") };
        assert_eq!(page(w, &mails, 10), [both.0, red.0]);
    }

    "G1" jobs_are_found_by_their_key(w) {
        let a = w.put(job("mail").key(key("order-7")));
        let b = w.put(job("mail").tenant(tenant("b")).key(key("order-7")));
        w.put(job("mail").key(key("Order-7")));
        w.put(job("mail").key(key("order-70")));
        w.put_one();
        assert_eq!(page(w, &keyed("order-7"), 10), [b.0, a.0], "each tenant has keys of its own");
        assert_eq!(page(w, &keyed("order-7"), 1), [b.0]);
        assert_eq!(page(w, &Filter { tenant: Some(tenant("b")), ..keyed("order-7") }, 10), [b.0]);
        assert!(page(w, &keyed("order-_"), 10).is_empty());
        let another = Filter { key: Some(key("order-7").window(secs(1))), ..Filter::default() };
        assert_eq!(page(w, &another, 10), [b.0, a.0], "only the text is compared");
    }

    "G1" every_state_can_be_filtered_for(w) {
        let succeeded = w.ended(complete());
        let dead = w.ended(Outcome::Bury { reason: "no".into() });
        let parked = w.ended(Outcome::Park { reason: "x".into() });
        let cancelled = w.put_one();
        w.store.cancel(&[cancelled]).unwrap();
        let running = w.put_one();
        w.take("ann");
        let (waiting, ready) = (w.put(job("work").delay(secs(9))), w.put_one());
        for (state, expected) in [
            (State::Queued, vec![ready, waiting]),
            (State::Running, vec![running]),
            (State::Parked, vec![parked]),
            (State::Succeeded, vec![succeeded]),
            (State::Dead, vec![dead]),
            (State::Cancelled, vec![cancelled]),
        ] {
            let found: Vec<_> = w.look().jobs(&Filter { state: Some(state), ..Filter::default() }, 10).unwrap()
                .iter().map(|job| job.id).collect();
            assert_eq!(found, expected, "{state}");
        }
    }

    "G1" the_overview_counts_each_queue_and_tenant(w) {
        let overview = w.look().overview().unwrap();
        assert!(overview.lines.is_empty());
        assert_eq!(overview.at, w.now());
        w.ended(complete());
        w.ended(Outcome::Bury { reason: "no".into() });
        w.ended(Outcome::Park { reason: "x".into() });
        w.put_one();
        w.take("ann");
        w.put_one();
        w.pass(secs(4));
        w.put_one();
        w.put(job("work").delay(secs(9)));
        w.put(job("work").tenant(tenant("acme")).queue(name("bulk")));
        let lines = w.look().overview().unwrap().lines;
        let acme = OverviewLine { ready: 1, oldest_wait_ms: Some(0), ..OverviewLine::empty(name("bulk"), tenant("acme")) };
        let other = OverviewLine {
            ready: 2, waiting: 1, running: 1, parked: 1, dead: 1, oldest_wait_ms: Some(4_000),
            succeeded_last_minute: 1, died_last_minute: 1,
            ..OverviewLine::empty(name("default"), tenant(""))
        };
        assert_eq!(lines, [acme, other]);
        w.pass(secs(60));
        let later = w.look().overview().unwrap().lines.remove(1);
        assert_eq!((later.dead, later.succeeded_last_minute, later.died_last_minute), (1, 0, 0));
        // A due job counts as ready, whether or not a claim has promoted it.
        assert_eq!((later.ready, later.waiting), (3, 0));
    }

    "G2" leases_are_listed_by_when_they_end(w) {
        w.put_one();
        w.put_one();
        let first = w.take("ann").lease;
        let second = w.take("bob").lease;
        w.pass(secs(1));
        w.store.renew(&[first.fence()], super::LEASE).unwrap();
        w.put_one();
        w.put(job("work").delay(secs(9)));
        let leases = w.look().leases(10).unwrap();
        let seen: Vec<_> = leases.iter().map(|lease| (lease.job, lease.worker.clone(), lease.token)).collect();
        assert_eq!(seen, [(second.job(), worker("bob"), second.token()), (first.job(), worker("ann"), first.token())]);
        assert_eq!(w.look().leases(1).unwrap().len(), 1);
    }

    "I11" looking_wakes_nobody(w) {
        w.put_one();
        w.claim(&ask("ann", 1));
        while w.store.wait(clock::monotonic()).unwrap() == Wake::Changed {}
        w.claim(&ask("bob", 1));
        w.look().overview().unwrap();
        w.look().jobs(&Filter::default(), 10).unwrap();
        assert_eq!(w.store.wait(clock::monotonic()).unwrap(), Wake::TimedOut);
    }

    "G1" the_rates_are_of_the_last_minute_to_the_millisecond(w) {
        w.ended(complete());
        w.ended(Outcome::Bury { reason: "no".into() });
        let rates = |w: &mut super::World| {
            let line = w.look().overview().unwrap().lines.remove(0);
            (line.succeeded_last_minute, line.died_last_minute)
        };
        w.pass(OverviewLine::WINDOW - std::time::Duration::from_millis(1));
        assert_eq!(rates(w), (1, 1));
        w.pass(std::time::Duration::from_millis(1));
        assert_eq!(rates(w), (0, 0));
    }

    "I15" pages_of_ended_jobs_are_chosen_and_go_on_as_those_of_live_ones(w) {
        for state in [State::Succeeded, State::Dead, State::Cancelled] {
            let mut put = |job| {
                let id = w.put(job);
                end_as(w, id, state);
                id.0
            };
            let own = key(state.name());
            let a = put(job("mail").tenant(tenant("a")).key(own.clone()));
            let red = job("mail").tags(vec![name("red")]).unwrap();
            let b = put(red.tenant(tenant("b")).queue(name("bulk")));
            let c = put(job("copy"));
            let filter = || Filter { state: Some(state), ..Filter::default() };
            assert_eq!(page(w, &filter(), 2), [c, b], "{state}");
            assert_eq!(page(w, &Filter { before: Some(JobId(b)), ..filter() }, 2), [a], "{state}");
            assert_eq!(page(w, &Filter { tenant: Some(tenant("a")), ..filter() }, 10), [a], "{state}");
            assert_eq!(page(w, &Filter { queue: Some(name("bulk")), ..filter() }, 10), [b], "{state}");
            assert_eq!(page(w, &Filter { kind: Some(name("copy")), ..filter() }, 10), [c], "{state}");
            assert_eq!(page(w, &Filter { tag: Some(name("red")), ..filter() }, 10), [b], "{state}");
            assert_eq!(page(w, &Filter { key: Some(own), ..filter() }, 10), [a], "{state}");
        }
    }

    "G1" a_job_counts_as_ready_from_the_moment_at_which_it_is_due(w) {
        w.put(job("work").delay(secs(5)));
        let seen = |w: &mut World| {
            let line = w.look().overview().unwrap().lines.remove(0);
            (line.ready, line.waiting, line.oldest_wait_ms)
        };
        w.pass(secs(5) - std::time::Duration::from_millis(1));
        assert_eq!(seen(w), (0, 1, None));
        w.pass(std::time::Duration::from_millis(1));
        assert_eq!(seen(w), (1, 0, Some(0)));
    }

    "G1" queues_are_listed_by_their_names(w) {
        for queue in ["mail", "bulk", "slow"] {
            w.store.configure(&name(queue), &QueueChange::default()).unwrap();
        }
        let queues: Vec<_> = w.look().queues().unwrap().into_iter().map(|settings| settings.queue).collect();
        assert_eq!(queues, ["bulk", "mail", "slow"].map(name));
    }
}
