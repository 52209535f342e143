-- What the server is, asked once after every connect: before anything is trusted to it.
-- The last column is the mark that this connection gave itself when it was opened. A pooler that
-- lends us somebody else's session cannot have it.
SELECT current_setting('server_version_num')::int4          AS version_number,
       current_setting('server_version')                    AS version,
       current_setting('server_encoding')                   AS encoding,
       pg_is_in_recovery()                                  AS is_replica,
       current_setting('transaction_read_only')::bool       AS is_read_only,
       coalesce(current_setting('tenure.session', true), '') AS mark
