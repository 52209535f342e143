//! Databases that go back in time.

use tenure::Timestamp;
use tenure::drill::Dump;
use tenure::engine::job::{JobId, State};
use tenure::engine::lease::{Token, epoch_of};
use tenure::engine::ledger::{Act, Answer};
use tenure::engine::store::{Enqueued, Renewed, Settled};

use super::{LEASE, World, complete, job, key, promises, queries, secs};

/// The database goes back to an earlier state, while the clock goes on.
fn goes_back(w: &mut World, to: &Dump) {
    w.store.go_back(to).unwrap();
}

promises! { "epoch":
    "I2" after_going_back_the_next_token_and_the_next_id_are_larger_than_any_before(w) {
        w.put_one();
        w.put_one();
        let backup = w.dump();
        let mut lost: Vec<_> = (0..5).map(|_| w.put_one()).collect();
        lost.extend([JobId(1), JobId(2)]);
        let claimed = w.claim(&super::ask("ann", 7)).attempts;
        let highest = claimed.iter().map(|attempt| attempt.lease.token()).max().unwrap();
        w.pass(secs(1));
        goes_back(w, &backup);
        let id = w.put_one();
        assert!(lost.iter().all(|before| *before < id), "{id} is not above {lost:?}");
        let again = w.claim(&super::ask("bob", 9)).attempts;
        assert_eq!(again.len(), 3);
        assert!(again.iter().all(|attempt| attempt.lease.token() > highest));
        for attempt in claimed {
            let answer = w.settle(attempt.lease.fence(), complete());
            assert!(matches!(answer, Settled::Stale(_) | Settled::NotFound), "{answer:?}");
        }
    }

    "G3" a_running_jobs_holders_from_before_and_from_the_lost_time_are_refused(w) {
        let id = w.put_one();
        let before = w.take("ann").lease.fence();
        let backup = w.dump();
        w.pass(LEASE);
        let lost = w.take("bob").lease.fence();
        assert_eq!(lost.job, id);
        goes_back(w, &backup);
        w.pass(LEASE);
        let after = w.take("cid").lease.fence();
        assert!(after.token > lost.token && lost.token > before.token);
        for old in [before, lost] {
            assert!(matches!(w.settle(old, complete()), Settled::Stale(stale) if stale.current == after.token));
            assert!(matches!(w.store.renew(&[old], LEASE).unwrap()[0], Renewed::Stale(_)));
            assert!(matches!(w.act(old, "charge", Act::Open), Answer::Stale(_)));
        }
        assert_eq!(w.settle(after, complete()), Settled::Applied(State::Succeeded));
    }

    "I2" an_id_from_the_lost_time_is_not_given_to_another_job(w) {
        let backup = w.dump();
        let lost = w.put(job("pay"));
        goes_back(w, &backup);
        let next = w.put(job("pay"));
        assert!(next > lost, "or its effects would be taken for those of the lost one");
        assert!(epoch_of(next.0) > epoch_of(lost.0), "and its key for the outside is another one");
    }

    "I2" going_back_to_the_same_state_again_gives_other_numbers_than_the_first_time(w) {
        // A date of today: an epoch contains the time, in units of ten minutes.
        w.clock.set(Timestamp::from_millis(1_798_761_600_000));
        w.put_one();
        let backup = w.dump();
        let mut highest = (JobId(0), Token::NONE);
        for _ in 0..3 {
            goes_back(w, &backup);
            let numbers = (w.put_one(), w.take("ann").lease.token());
            assert!(numbers.0 > highest.0 && numbers.1 > highest.1, "{numbers:?} after {highest:?}");
            highest = numbers;
            w.pass(secs(600));
        }
    }

    "I12" a_key_is_remembered_across_epochs(w) {
        let id = w.put(job("pay").key(key("k")));
        let backup = w.dump();
        goes_back(w, &backup);
        assert_eq!(w.store.enqueue(&[job("pay").key(key("k"))]).unwrap(), [Enqueued::Existing(id)]);
        let batch = [job("pay").key(key("a")), job("pay").key(key("a")), job("pay")];
        let answers = w.store.enqueue(&batch).unwrap();
        let [Enqueued::Created(first), Enqueued::Existing(same), Enqueued::Created(last)] = answers[..] else {
            panic!("{answers:?}")
        };
        assert!(first == same && last.0 == first.0 + 1 && first > id);
    }
}

queries! { "epoch":
    "G3" an_operator_raises_the_epoch_and_it_is_told_why(w) {
        let identity = w.look().identity().unwrap();
        assert_eq!((identity.epoch, identity.installation.is_nil()), (0, false));
        w.pass(secs(1));
        let epoch = w.store.raise_epoch("restored from a snapshot").unwrap();
        let identity = w.look().identity().unwrap();
        assert_eq!((epoch, identity.epoch), (1, 1));
        let raise = identity.raises.last().unwrap();
        assert_eq!((raise.epoch, raise.at, raise.reason.as_str()), (1, w.now(), "restored from a snapshot"));
        assert_eq!(w.store.raise_epoch("once more").unwrap(), 2);
        let raises = w.look().identity().unwrap().raises;
        assert_eq!(raises.iter().map(|raise| raise.epoch).collect::<Vec<_>>(), [1, 2]);
        let id = w.put_one();
        assert_eq!(epoch_of(id.0), 2);
        assert_eq!(epoch_of(w.take("ann").lease.token().0), 2);
    }

    "G3" what_was_noticed_is_told_too(w) {
        w.put_one();
        let backup = w.dump();
        goes_back(w, &backup);
        w.take("ann");
        let identity = w.look().identity().unwrap();
        assert_eq!((identity.epoch, identity.raises.len()), (1, 1));
        assert!(!identity.raises[0].reason.is_empty());
        w.put_one();
        w.take("bob");
        assert_eq!(w.look().identity().unwrap().raises.len(), 1, "and noticed once");
    }
}
