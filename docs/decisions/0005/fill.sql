-- :n ready jobs of kind :kind over :tenants tenants, or waiting ones with a delay of :delay milliseconds.
SELECT set_config('fill.n', :'n', false), set_config('fill.kind', :'kind', false),
       set_config('fill.tenants', :'tenants', false), set_config('fill.delay', :'delay', false) \g /dev/null
DO $$
DECLARE
    tenants int := current_setting('fill.tenants');
BEGIN
    FOR batch IN 1..current_setting('fill.n')::int / 1000 LOOP
        PERFORM tenure.enqueue_many(
            array_fill(current_setting('fill.kind'), ARRAY[1000]),
            array_fill('{"to":"someone@example.com","n":1}'::json, ARRAY[1000]),
            p_tenants => CASE WHEN tenants > 1 THEN (SELECT array_agg('t' || i % tenants) FROM generate_series(1, 1000) i) END,
            p_options => array_fill(json_build_object('delay_ms', current_setting('fill.delay')::bigint), ARRAY[1000]));
    END LOOP;
END $$;
