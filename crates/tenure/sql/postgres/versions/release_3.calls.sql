-- What programs written for release 3 call: every single form, by its parameters' names. A test runs this on an
-- installation that was brought up to date. An empty line ends a transaction.

SELECT tenure.enqueue(kind => 'report', args => '{"month":7}', queue => 'slow', tenant => 'acme', key => 'report-7',
    priority => 3, delay => interval '0', max_attempts => 3, max_crashes => 2, max_runtime => interval '1 hour',
    retry => '{"fixed":{"ms":70}}', key_window => interval '1 hour', trace => '00-ab-cd-01', tags => '{red,blue}');

SELECT tenure.enqueue('plain', '{}') FROM generate_series(1, 12);

DO $$
DECLARE
    j record;
BEGIN
    SELECT id, token, kind, queue, tenant, args, attempt, lease_until INTO STRICT j
      FROM tenure.claim(worker => 'ann', queues => '{slow}', n => 1, lease => interval '30 seconds', kinds => '{report}');
    ASSERT j.kind = 'report' AND j.tenant = 'acme' AND j.args ->> 'month' = '7' AND j.attempt = 1;
    ASSERT tenure.renew(job => j.id, token => j.token, lease => interval '1 minute') > clock_timestamp();
    ASSERT tenure.progress(job => j.id, token => j.token, fraction => 0.5, note => 'half');
    PERFORM tenure.fence(job => j.id, token => j.token, strict => true);
    PERFORM tenure.step_put(job => j.id, token => j.token, step => 'load', result => '1');
    ASSERT tenure.step_get(job => j.id, token => j.token, step => 'load')::text = '1';
    ASSERT (SELECT answer FROM tenure.effect_open(job => j.id, token => j.token, effect => 'charge')) = 'opened';
    PERFORM tenure.effect_commit(job => j.id, token => j.token, effect => 'charge', result => '"r-1"');
    ASSERT tenure.hold(job => j.id, token => j.token) IS NOT NULL;
    PERFORM tenure.complete(job => j.id, token => j.token, result => '{"ok":true}');
    ASSERT (SELECT state FROM tenure.job WHERE id = j.id) = 'succeeded';
END $$;

DO $$
DECLARE
    j record;
BEGIN
    FOR j IN SELECT id, token, row_number() OVER (ORDER BY id) AS n FROM tenure.claim('bob', n => 5) LOOP
        CASE j.n
            WHEN 1 THEN PERFORM tenure.fail(job => j.id, token => j.token, error => 'no answer');
            WHEN 2 THEN PERFORM tenure.snooze(job => j.id, token => j.token, delay => interval '1 hour');
            WHEN 3 THEN PERFORM tenure.release(job => j.id, token => j.token);
            WHEN 4 THEN PERFORM tenure.bury(job => j.id, token => j.token, reason => 'hopeless');
            WHEN 5 THEN PERFORM tenure.park(job => j.id, token => j.token, reason => 'ask Ann');
        END CASE;
    END LOOP;
    BEGIN
        PERFORM tenure.complete((SELECT id FROM tenure.job WHERE state = 'dead'), 1);
        RAISE EXCEPTION 'a stale token was accepted';
    EXCEPTION WHEN SQLSTATE 'TN001' THEN NULL;
    END;
    ASSERT (SELECT array_agg(DISTINCT state ORDER BY state) FROM tenure.job) = '{dead,parked,queued,succeeded}';
END $$;

SELECT tenure.requeue(job => id, if_token => token) FROM tenure.job WHERE state = 'dead';

SELECT tenure.resume(job => id) FROM tenure.job WHERE state = 'parked';

SELECT tenure.cancel(job => id) FROM tenure.job WHERE kind = 'plain' AND state = 'queued';

DO $$
BEGIN
    ASSERT (SELECT array_agg(DISTINCT state ORDER BY state) FROM tenure.job) = '{cancelled,succeeded}';
    ASSERT (SELECT count(*) FROM tenure.event) > 0 AND (SELECT count(*) FROM tenure.effect) = 1;
END $$;
