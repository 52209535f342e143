//! How a holder reports progress, and where it is shown.

use std::time::Duration;

use tenure::engine::job::{JobId, JobRecord, Progress, State};
use tenure::engine::lease::{Fence, Reason, Stale, Token};
use tenure::engine::lifecycle::{Outcome, Verb};
use tenure::engine::store::{AsSeen, Report, Reported};

use super::{LEASE, World, ask, complete, outcomes, promises, retry, secs};

fn half_way() -> Progress {
    Progress::new(0.5, "embedding")
}

impl World {
    fn tell(&mut self, fence: Fence, progress: Progress) -> Reported {
        self.store.progress(&[Report { fence, progress }]).expect("progress answers")[0]
    }

    fn progress(&mut self, id: JobId) -> Option<Progress> {
        self.record(id).progress
    }
}

promises! { "progress":
    "G2" what_a_holder_tells_is_seen_and_the_last_word_counts(w) {
        let id = w.put_one();
        assert_eq!(w.progress(id), None);
        let fence = w.take("ann").lease.fence();
        assert_eq!(w.progress(id), None);
        assert_eq!(w.tell(fence, half_way()), Reported::Noted);
        assert_eq!(w.progress(id), Some(half_way()));
        // Also if it is less than before, and without a note.
        assert_eq!(w.tell(fence, Progress::new(0.1, None)), Reported::Noted);
        assert_eq!(w.progress(id), Some(Progress::new(0.1, None)));
    }

    "G6" whatever_is_told_can_be_kept(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        let long = "\0é".repeat(5_000);
        for (fraction, permille) in [(f64::NAN, 0), (-1.0, 0), (0.0, 0), (0.123_4, 123), (9.0, 1_000)] {
            for note in [None, Some(""), Some("it's 'half' done\n"), Some(long.as_str())] {
                let told = Progress::new(fraction, note);
                assert_eq!(w.tell(fence, told.clone()), Reported::Noted);
                let kept = w.progress(id).unwrap();
                assert_eq!((kept.permille(), &kept), (permille, &told));
            }
        }
    }

    "I7" a_worker_that_lost_its_lease_cannot_tell(w) {
        let id = w.put_one();
        let (first, second) = w.taken_over();
        w.tell(second.lease.fence(), half_way());
        let before = w.record(id);
        let (shown, current) = (first.lease.fence(), second.lease.token());
        let stale = Stale { shown, current, state: State::Running, reason: Reason::TokenMismatch };
        for _ in 0..3 {
            assert_eq!(w.tell(shown, Progress::new(0.9, "late")), Reported::Stale(stale));
        }
        assert_eq!(w.record(id), before);
        assert_eq!(w.refusals(id), [Verb::Progress], "once");
    }

    "I7" nobody_tells_of_an_attempt_that_has_ended(w) {
        for outcome in outcomes() {
            let id = w.put_one();
            let fence = w.take("ann").lease.fence();
            w.settle(fence, outcome.clone());
            let before = w.record(id);
            assert!(matches!(w.tell(fence, half_way()), Reported::Stale(_)), "{outcome:?}");
            assert_eq!(w.record(id), before, "{outcome:?}");
            assert_eq!(w.refusals(id), [Verb::Progress], "{outcome:?}");
            w.store.cancel(&[id]).unwrap();
        }
    }

    "G7" telling_of_an_unknown_job_answers_gone(w) {
        let nobody = Fence { job: JobId(77), token: Token(1) };
        assert_eq!(w.tell(nobody, half_way()), Reported::NotFound);
    }

    "G2" the_next_claim_begins_anew(w) {
        let id = w.put_one();
        for outcome in [retry(Duration::ZERO), Outcome::Release, Outcome::Snooze { after: Duration::ZERO }] {
            let fence = w.take("ann").lease.fence();
            w.tell(fence, half_way());
            w.settle(fence, outcome);
            assert_eq!((w.state(id), w.progress(id)), (State::Queued, Some(half_way())), "until then it stays");
            let fence = w.take("bob").lease.fence();
            assert_eq!(w.progress(id), None);
            w.tell(fence, half_way());
            w.pass(LEASE);
            assert_eq!(w.sweep(), 1);
            assert_eq!(w.progress(id), Some(half_way()), "so it does after a lapse");
            let fence = w.take("cid").lease.fence();
            assert_eq!(w.progress(id), None);
            w.settle(fence, Outcome::Bury { reason: "hopeless".into() });
            w.store.requeue(&[AsSeen::any(id)]).unwrap();
        }
    }

    "G2" a_parked_job_keeps_it_until_somebody_goes_on(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.tell(fence, half_way());
        w.settle(fence, Outcome::Park { reason: "ask Ann".into() });
        assert_eq!(w.progress(id), Some(half_way()));
        w.store.resume(&[id]).unwrap();
        assert_eq!(w.progress(id), Some(half_way()));
        w.take("bob");
        assert_eq!(w.progress(id), None);
    }

    "G2" an_ended_job_has_none(w) {
        for end in ["complete", "bury", "cancel"] {
            let id = w.put_one();
            let fence = w.take("ann").lease.fence();
            w.tell(fence, half_way());
            match end {
                "complete" => drop(w.settle(fence, complete())),
                "bury" => drop(w.settle(fence, Outcome::Bury { reason: "hopeless".into() })),
                _ => drop(w.store.cancel(&[id]).unwrap()),
            }
            assert_eq!((w.state(id).has_ended(), w.progress(id)), (true, None), "{end}");
            if end != "complete" {
                w.store.requeue(&[AsSeen::any(id)]).unwrap();
                assert_eq!((w.state(id), w.progress(id)), (State::Queued, None), "{end}");
                w.store.cancel(&[id]).unwrap();
            }
        }
    }

    "G5" telling_extends_no_lease_and_changes_nothing_else(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        let before = w.record(id);
        w.pass(secs(20));
        for _ in 0..2 {
            assert_eq!(w.tell(fence, half_way()), Reported::Noted, "also when it is repeated");
            assert_eq!(w.record(id), JobRecord { progress: Some(half_way()), ..before.clone() });
        }
        assert!(w.timeline(id).is_empty());
        w.pass(secs(10));
        assert_eq!(w.claim_ids(&ask("bob", 1)), [id], "the lease is over");
    }

    "G2" a_late_word_is_heard_if_nobody_took_the_job(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE * 2);
        assert_eq!(w.tell(fence, half_way()), Reported::Noted);
        assert_eq!(w.progress(id), Some(half_way()));
    }

    "G2" each_report_of_a_batch_is_answered_by_itself_and_the_last_of_a_job_counts(w) {
        let lost = w.put_one();
        let (first, second) = w.taken_over();
        let held = w.put_one();
        let fence = w.take("ann").lease.fence();
        let nobody = Fence { job: JobId(77), token: Token(1) };
        let told = [(first.lease.fence(), 0.9), (fence, 0.3), (nobody, 0.9), (second.lease.fence(), 0.1), (fence, 0.2)];
        let reports = told.map(|(fence, fraction)| Report { fence, progress: Progress::new(fraction, None) });
        let answers = w.store.progress(&reports).unwrap();
        assert!(
            matches!(answers[..], [Reported::Stale(_), Reported::Noted, Reported::NotFound, Reported::Noted, Reported::Noted]),
            "{answers:?}"
        );
        assert_eq!(w.progress(lost), Some(Progress::new(0.1, None)));
        assert_eq!(w.progress(held), Some(Progress::new(0.2, None)));
    }

    "G6" a_batch_of_reports_that_makes_no_sense_is_refused(w) {
        w.put_one();
        let report = Report { fence: w.take("ann").lease.fence(), progress: half_way() };
        assert!(w.store.progress(&vec![report; 1_001]).unwrap_err().is_invalid());
        assert!(w.store.progress(&[]).unwrap().is_empty());
    }
}
