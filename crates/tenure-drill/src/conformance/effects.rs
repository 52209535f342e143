//! How effects are listed: all of them, and those in doubt.

use tenure::JobId;
use tenure::engine::inspect::{EffectFilter, EffectView};
use tenure::engine::ledger::{Act, Resolution};

use super::ledger::commit;
use super::{LEASE, World, ask, queries};

/// The effects that are listed as in doubt.
fn doubts(w: &mut World) -> Vec<String> {
    let only = EffectFilter { in_doubt: true, ..EffectFilter::default() };
    let found = w.look().effects(&only, 100).unwrap();
    found.iter().map(|view| format!("{}/{}", view.effect.job, view.effect.name)).collect()
}

queries! { "effects":
    "G8" an_effect_is_listed_as_doubtful_only_while_nobody_knows(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        assert!(doubts(w).is_empty(), "its holder is at it");
        w.pass(LEASE);
        assert!(doubts(w).is_empty(), "however late, while nobody has taken the job");
        w.sweep();
        assert_eq!(doubts(w), [format!("{id}/charge")]);
        let second = w.take("bob").lease.fence();
        assert_eq!(doubts(w), [format!("{id}/charge")]);
        w.act(second, "charge", Act::Resolve(Resolution::Resend));
        assert!(doubts(w).is_empty());
    }

    "I15" effects_are_paged_by_job_newest_first(w) {
        for _ in 0..5 {
            w.put_one();
        }
        for attempt in w.claim(&ask("ann", 5)).attempts {
            w.open(attempt.lease.fence(), "b");
            w.open(attempt.lease.fence(), "a");
        }
        let page = |w: &mut World, filter: EffectFilter, limit| {
            let found = w.look().effects(&filter, limit).unwrap();
            found.iter().map(|view| (view.effect.job.0, view.effect.name.to_string())).collect::<Vec<_>>()
        };
        let of = |job, name: &str| (job, name.to_owned());
        let all = EffectFilter::default();
        assert_eq!(page(w, all.clone(), 3), [of(5, "a"), of(5, "b"), of(4, "a")]);
        let older = EffectFilter { before: Some(JobId(2)), ..all };
        assert_eq!(page(w, older, 100), [of(1, "a"), of(1, "b")]);
    }

    "I15" doubts_are_paged_and_chosen_as_all_effects_are(w) {
        for _ in 0..4 {
            w.put_one();
        }
        let attempts = w.claim(&ask("ann", 4)).attempts;
        for attempt in &attempts {
            w.open(attempt.lease.fence(), "charge");
            w.open(attempt.lease.fence(), "mail");
            w.act(attempt.lease.fence(), "mail", commit("1"));
        }
        let page = |w: &mut World, filter: EffectFilter| {
            let found = w.look().effects(&filter, 100).unwrap();
            let told = |view: &EffectView| (view.effect.job.0, view.effect.name.to_string(), view.in_doubt);
            found.iter().map(told).collect::<Vec<_>>()
        };
        let of = |job, name: &str, in_doubt| (job, name.to_owned(), in_doubt);
        let first = EffectFilter { job: Some(JobId(1)), ..EffectFilter::default() };
        assert_eq!(page(w, first.clone()), [of(1, "charge", false), of(1, "mail", false)], "its holder is at it");
        w.pass(LEASE);
        w.sweep();
        assert_eq!(page(w, first), [of(1, "charge", true), of(1, "mail", false)]);
        let doubts = EffectFilter { in_doubt: true, ..EffectFilter::default() };
        let older = EffectFilter { before: Some(JobId(3)), ..doubts.clone() };
        assert_eq!(page(w, older), [of(2, "charge", true), of(1, "charge", true)]);
        let newest: Vec<_> = w.look().effects(&doubts, 2).unwrap().iter().map(|view| view.effect.job.0).collect();
        assert_eq!(newest, [4, 3], "no more than were asked for");
        assert_eq!(page(w, EffectFilter { job: Some(JobId(4)), ..doubts }), [of(4, "charge", true)]);
    }
}
