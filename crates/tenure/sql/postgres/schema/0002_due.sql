-- The index by time alone is for the worker that looks for all, and only for it. The planner cannot use it for a claim, which asks
-- for `state = 1`. With the condition that it had before, claims walked over the waiting jobs of all queues in it, when the table
-- had been analysed in a moment in which it was empty.

DROP INDEX tenure.jobs_due;
CREATE INDEX jobs_due ON tenure.jobs ((run_at + 0), id) WHERE state + 0 = 1;
