-- Checks p_limit jobs, live and ended together, from the id p_from on: whether what is stored is as it must be. Answers
-- a row for each violation, and at the end one row without a rule: how many jobs it checked, and where to go on. The
-- last window has no upper end, so that rows left behind by deleted jobs are found there too. It reads its window and
-- no more, by primary keys. It is STABLE, so that all its statements see one snapshot: jobs move between the tables.
CREATE OR REPLACE FUNCTION tenure.check(p_from bigint, p_limit int)
RETURNS TABLE (job bigint, rule text, what text, looked int, next bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    overdue_ms CONSTANT bigint := 60000;
    t    bigint := tenure.clock_ms();
    b    record;
    e    bigint := tenure.epoch_of_now(t);
    low  bigint := coalesce(p_from, '-9223372036854775808'::bigint);
    high bigint;
    ids  bigint[];
BEGIN
    PERFORM tenure.check_batch(p_limit);
    SELECT l.started, l.broke, l.broke_before INTO b FROM tenure.noted_breaks(t) l;
    ids := ARRAY(SELECT u.id FROM ((SELECT j.id FROM tenure.jobs j WHERE j.id >= low ORDER BY j.id LIMIT p_limit + 1)
                                   UNION
                                   (SELECT d.id FROM tenure.done d WHERE d.id >= low ORDER BY d.id LIMIT p_limit + 1)) u
                  ORDER BY u.id LIMIT p_limit + 1);
    next := ids[p_limit + 1];
    high := coalesce(next - 1, 9223372036854775807);
    ids := ids[:p_limit];
    looked := cardinality(ids);

    RETURN QUERY SELECT w.job, w.rule, w.what, NULL::int, NULL::bigint FROM (
        -- A job is in one of the two tables, not in both.
        SELECT j.id AS job, 'i9' AS rule, 'it is both owed and ended' AS what
          FROM tenure.jobs j JOIN tenure.done d ON d.id = j.id WHERE j.id BETWEEN low AND high
        UNION ALL
        -- No row is left of a job that was deleted.
        SELECT DISTINCT l.job_id, 'i9', 'its ' || l.place || ' is there, but the job is not'
          FROM (SELECT p.job_id, 'payload' AS place FROM tenure.payloads p WHERE p.job_id BETWEEN low AND high
                UNION ALL SELECT p.job_id, 'timeline' FROM tenure.timeline p WHERE p.job_id BETWEEN low AND high
                UNION ALL SELECT p.job_id, 'effect' FROM tenure.ledger p WHERE p.job_id BETWEEN low AND high
                UNION ALL SELECT p.job_id, 'step' FROM tenure.steps p WHERE p.job_id BETWEEN low AND high) l
         WHERE l.job_id <> ALL (ids)
        UNION ALL
        SELECT r.id, 'i9', 'its args are missing'
          FROM (SELECT j.id FROM tenure.jobs j WHERE j.id BETWEEN low AND high AND j.args IS NULL
                UNION ALL SELECT d.id FROM tenure.done d WHERE d.id BETWEEN low AND high AND d.args IS NULL) r
         WHERE NOT EXISTS (SELECT 1 FROM tenure.payloads p WHERE p.job_id = r.id)
        UNION ALL
        -- A succeeded job was completed by its last claim: a worker held it, and nothing else happened under its token
        -- or a later one. `resume` and `return` do not count: they are written under an older token, sometimes later
        -- (an operator's resume, a worker that came back).
        SELECT d.id, 'i3', 'it succeeded under token ' || d.token || ', but '
               || coalesce((SELECT l.verb || ' happened under token ' || l.token FROM tenure.timeline l
                             WHERE l.job_id = d.id AND l.token >= d.token AND NOT l.refused
                               AND l.verb NOT IN ('resume', 'return') LIMIT 1), 'nobody held it')
          FROM tenure.done d
         WHERE d.id BETWEEN low AND high AND d.state = 4 /* succeeded */
           AND (d.worker IS NULL OR d.started_at IS NULL
                OR EXISTS (SELECT 1 FROM tenure.timeline l WHERE l.job_id = d.id AND l.token >= d.token AND NOT l.refused
                              AND l.verb NOT IN ('resume', 'return')))
        UNION ALL
        -- Nothing stays running without a living holder.
        SELECT j.id, 'i11', 'its lease was over ' || (t - j.lease_until) / 1000 || ' s ago, and nobody takes it back'
          FROM tenure.jobs j
         WHERE j.id BETWEEN low AND high AND j.state + 0 = 2 /* running */ AND j.lease_until + 0 <= t - overdue_ms
           AND tenure.pardoned_until(j.leased_at, j.lease_ms, j.started_at, j.max_runtime, b.started, b.broke, b.broke_before)
               <= t - overdue_ms
        UNION ALL
        -- The ledger agrees with the jobs.
        SELECT l.job_id, 'ledger', 'it succeeded, but what became of its effect ' || l.effect || ' was never written'
          FROM tenure.ledger l JOIN tenure.done d ON d.id = l.job_id AND d.state = 4 /* succeeded */
         WHERE l.job_id BETWEEN low AND high AND l.state = 0 /* open */
        UNION ALL
        SELECT l.job_id, 'ledger', 'its ' || l.name || ' was written under token ' || l.token || ', above the job''s own'
          FROM (SELECT x.job_id, x.token, 'effect ' || x.effect AS name FROM tenure.ledger x WHERE x.job_id BETWEEN low AND high
                UNION ALL
                SELECT x.job_id, x.token, 'step ' || x.step FROM tenure.steps x WHERE x.job_id BETWEEN low AND high) l
         CROSS JOIN LATERAL tenure.owner_of(l.job_id) o
         WHERE l.token > o.token
        UNION ALL
        -- A key that is remembered belongs to the last job that carries it.
        SELECT r.id, 'keys', 'its key is remembered for the older job ' || k.job_id
          FROM (SELECT j.id, j.tenant, j.key FROM tenure.jobs j WHERE j.id BETWEEN low AND high AND j.key IS NOT NULL
                UNION ALL
                SELECT d.id, d.tenant, d.key FROM tenure.done d WHERE d.id BETWEEN low AND high AND d.key IS NOT NULL) r
          JOIN tenure.keys k ON k.tenant = r.tenant AND k.scope = 0 AND k.key = r.key
         WHERE k.job_id < r.id
        UNION ALL
        -- A job stands in the lane that its queue, tenant and kind give: in another lane claims would not find it, or
        -- the wrong claims would. The suspect bit is read from the lane itself: a job with enough crashes is no suspect
        -- once its handler has returned, and only the lane tells that.
        SELECT j.id, 'lane', 'it stands in lane ' || j.lane || ', but its names and crashes give ' || r.lane
          FROM tenure.jobs j
         CROSS JOIN LATERAL (SELECT tenure.lane(j.queue, j.tenant, j.kind, tenure.is_suspect(j.lane)
                                                AND tenure.makes_suspect(j.crashes, j.max_crashes)) AS lane) r
         WHERE j.id BETWEEN low AND high AND j.lane <> r.lane
        UNION ALL
        -- No number is from an epoch that has not begun.
        SELECT r.id, 'epoch', 'its number or its token ' || r.token || ' is from an epoch that has not begun'
          FROM (SELECT j.id, j.token FROM tenure.jobs j WHERE j.id BETWEEN low AND high
                UNION ALL SELECT d.id, d.token FROM tenure.done d WHERE d.id BETWEEN low AND high) r
         WHERE r.token >> 40 > e OR r.id >> 40 > e) w
     ORDER BY w.job, w.rule, w.what;

    job := NULL;
    rule := NULL;
    what := NULL;
    RETURN NEXT;
END $$;
