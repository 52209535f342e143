-- How statements are planned: the settings of all functions in one list. This file runs last, since a function
-- that is replaced loses the settings that ALTER FUNCTION has given it.
--
-- The tables grow from nothing to millions of rows and back within minutes, so what the planner knows about
-- them is old: on a table that it takes for empty, it reads all of it. The settings leave it the indexes, one
-- plan for all calls, and in the functions of the first line no join but the nested loop. A function that is
-- called by one of these runs under the same settings. Three ways of writing a condition do what no setting
-- does, and nothing else explains them:
--
-- state + 0 = 2            There are partial indexes on states, and the planner would drive a statement from one
--                          of them, over all running jobs and their dead entries. With `+ 0` it finds the row by
--                          its id. Where an index on a state is meant, the bare `state = 2` stands. `id + 0` and
--                          `lease_until + 0` keep out their indexes in the same way.
-- id = ANY (ARRAY[s.id])   A list of one, in a join with a DELETE: only so the planner cannot walk the whole table
--                          instead, as long as it believes that the table is small.
-- ctid = p.spot            The place of a row that this transaction has locked, so that the row stays there. It
--                          saves the way through the primary key (docs/decisions/0005).
DO $$
DECLARE
    named record;
    name  text;
BEGIN
    FOR named IN VALUES
        ('{settle_and_claim,settle_many,hold_many,renew_many,progress_many,lapse_many,vanished,ledger_many,prune,purge_many,check}'::text[],
         'SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off '
         'SET enable_hashjoin = off SET enable_mergejoin = off'),
        ('{enqueue_many,cancel_many,requeue_many,resume_many,resolve_effect,current_many,beat,overdue}',
         'SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off'),
        ('{effects_page}',
         'SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off'),
        ('{page,leases}', 'SET enable_seqscan = off SET enable_bitmapscan = off'),
        ('{held}', 'SET enable_seqscan = off')
    LOOP
        FOREACH name IN ARRAY named.column1 LOOP
            EXECUTE format('ALTER FUNCTION tenure.%I %s', name, named.column2);
        END LOOP;
    END LOOP;
END $$;
