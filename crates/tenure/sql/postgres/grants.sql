-- The rights of a worker, an enqueuer and a reader. None of them has a right on any table.
GRANT USAGE ON SCHEMA "tenure" TO "tenure_worker", "tenure_enqueuer", "tenure_reader";
GRANT EXECUTE ON FUNCTION tenure.history, tenure.now, tenure.identity, tenure.outcome TO "tenure_worker", "tenure_enqueuer", "tenure_reader";
GRANT EXECUTE ON FUNCTION tenure.enqueue, tenure.enqueue_many, tenure.fingerprint TO "tenure_worker", "tenure_enqueuer";
GRANT EXECUTE ON FUNCTION tenure.claim, tenure.claim_many, tenure.settle_and_claim, tenure.held,
    tenure.current_many, tenure.renew, tenure.renew_many, tenure.progress, tenure.progress_many, tenure.overdue, tenure.lapse_many,
    tenure.complete, tenure.fail, tenure.snooze, tenure.release, tenure.bury, tenure.park, tenure.settle_many,
    tenure.fence, tenure.hold, tenure.hold_many, tenure.refused, tenure.follow_refused, tenure.prune,
    tenure.ledger_many, tenure.effect_open, tenure.effect_commit, tenure.effect_fail, tenure.effect_settle,
    tenure.step_get, tenure.step_put, tenure.guard, tenure.is_guarding, tenure.register, tenure.retire, tenure.vanished,
    tenure.beat, tenure.terms, tenure.guard_gap, tenure.check TO "tenure_worker";
GRANT SELECT ON tenure.job, tenure.event, tenure.effect, tenure.stats TO "tenure_reader";
GRANT EXECUTE ON FUNCTION tenure.at, tenure.state_name, tenure.look_at, tenure.timeline_of, tenure.page, tenure.overview,
    tenure.leases, tenure.overdue, tenure.queue_settings, tenure.effects_page, tenure.known_workers, tenure.terms,
    tenure.guard_gap, tenure.check TO "tenure_reader";
