-- How statements are planned: the settings of all functions in one list. This file runs last, since a function
-- that is replaced loses the settings that ALTER FUNCTION has given it.
--
-- The tables grow from nothing to millions of rows and back within minutes, so the planner's statistics are old:
-- a table that it believes to be empty it reads as a whole. The settings leave it only the indexes; those with
-- force_generic_plan make it plan once for all calls; and the functions of the first line have no join but the
-- nested loop. A function that is called by one of these runs under the same settings. Three ways of writing a
-- condition do what no setting can do. This is why they are there:
--
-- state + 0 = 2            There are partial indexes on states. With the bare `state = 2` the planner might read one
--                          of them as a whole, all running jobs and the entries of jobs that are gone. With `+ 0`
--                          it finds the row by its id. Where an index on a state is meant, the bare `state = 2`
--                          stands. `id + 0` and `lease_until + 0` keep the planner from their indexes in the same way.
-- id = ANY (ARRAY[s.id])   A list of one id, in a join with a DELETE: it keeps the planner from reading the whole
--                          table, which it would prefer while it believes that the table is small.
-- ctid = p.spot            The physical place of a row that this transaction has locked, so that the row stays there.
--                          It saves the search in the primary key (docs/decisions/0005).
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
