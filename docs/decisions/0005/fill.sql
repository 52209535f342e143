-- :n jobs of kind :kind over :tenants tenants, in :state with run_at offset
INSERT INTO tenure.jobs (id, lane, run_at, enqueued_at, state, queue, tenant, kind, args)
SELECT nextval('tenure.job_id'), tenure.lane('default', t.tenant, :'kind'), tenure.now() + :'offset'::interval + g.n * interval '1 microsecond', tenure.now(), :state, 'default', t.tenant, :'kind', '{"to":"someone@example.com","n":1}'
FROM generate_series(1, :n) g(n) JOIN (SELECT i, CASE WHEN :tenants = 1 THEN '' ELSE 't' || i END AS tenant, tenure.lane('default', CASE WHEN :tenants = 1 THEN '' ELSE 't' || i END, :'kind') AS lane FROM generate_series(0, :tenants - 1) i) t ON t.i = g.n % :tenants;
