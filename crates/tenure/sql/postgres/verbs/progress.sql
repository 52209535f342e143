-- Notes how far jobs have come: fenced, in place of what was noted before. It touches neither the lease nor the token.
-- It never waits for a row: if another open transaction has the job locked, the verdict is `busy`, and nothing is
-- noted. Of several reports of one job the last counts. A value that is out of bounds is moved to the bound, since
-- nothing depends on it.
CREATE OR REPLACE FUNCTION tenure.progress_many(p_jobs bigint[], p_tokens bigint[], p_permille smallint[], p_notes text[])
RETURNS TABLE (n int, verdict text, token bigint, state smallint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    t     bigint;
    noted int[];
    shown record;
BEGIN
    PERFORM tenure.check_batch(cardinality(p_jobs), cardinality(p_tokens), cardinality(p_permille), cardinality(p_notes));
    WITH shown AS MATERIALIZED (
        SELECT u.id, u.token, u.permille, u.note, u.n
          FROM unnest(p_jobs, p_tokens, p_permille, p_notes) WITH ORDINALITY u(id, token, permille, note, n)),
    free AS MATERIALIZED (
        SELECT s.n, s.permille, s.note, l.spot FROM shown s CROSS JOIN LATERAL (
            SELECT j.ctid AS spot FROM tenure.jobs j
             WHERE j.id = s.id
               AND j.token = s.token AND j.state + 0 = 2 /* running */
               FOR NO KEY UPDATE SKIP LOCKED) l),
    written AS (
        UPDATE tenure.jobs j
           SET progress = least(greatest(coalesce(f.permille, 0), 0), 1000),
               progress_note = tenure.shorten(nullif(f.note, ''), 200)
          FROM (SELECT f.spot, array_agg(f.n) AS places, (array_agg(f.permille ORDER BY f.n DESC))[1] AS permille,
                       (array_agg(f.note ORDER BY f.n DESC))[1] AS note
                  FROM free f GROUP BY f.spot) f
         WHERE j.ctid = f.spot
        RETURNING f.places)
    SELECT array_agg(p.n) INTO noted FROM written w, unnest(w.places) p(n);
    RETURN QUERY SELECT h.n, 'noted', NULL::bigint, NULL::smallint FROM unnest(noted) h(n);
    IF cardinality(noted) = cardinality(p_jobs) THEN
        RETURN;
    END IF;

    t := tenure.clock_ms();
    FOR shown IN
        SELECT u.id, u.token, u.n::int AS n FROM unnest(p_jobs, p_tokens) WITH ORDINALITY u(id, token, n)
         -- A refusal inserts a line into the timeline, and another transaction that inserts the same line waits for
         -- that, as for a lock. So all batches insert in the same order.
         WHERE noted IS NULL OR u.n <> ALL (noted) ORDER BY u.id, u.token, u.n
    LOOP
        n := shown.n;
        token := NULL;
        state := NULL;
        IF EXISTS (SELECT 1 FROM tenure.jobs j WHERE j.id = shown.id AND j.token = shown.token AND j.state + 0 = 2 /* running */) THEN
            verdict := 'busy';
        ELSE
            SELECT r.token, r.state INTO token, state FROM tenure.refuse(shown.id, shown.token, 'progress', t) r;
            verdict := CASE WHEN token IS NULL THEN 'not_found' ELSE 'stale' END;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- A text of at most so many bytes, cut between characters, and with ' …' where it was cut. The library does the same in
-- job.rs.
CREATE OR REPLACE FUNCTION tenure.shorten(words text, most int) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    mark CONSTANT text := ' …';
    kept text := left(words, most);
BEGIN
    IF octet_length(words) <= most THEN
        RETURN words;
    END IF;
    WHILE octet_length(kept) > most - octet_length(mark) LOOP
        kept := left(kept, -1);
    END LOOP;
    RETURN kept || mark;
END $$;
