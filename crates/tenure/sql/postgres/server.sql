-- What the server is. The library asks this after every connect, before it uses the session. The last column is the
-- mark that the library gave the session when it opened the connection. If a pooler has lent us another client's
-- session, that session does not have our mark.
SELECT current_setting('server_version_num')::int4          AS version_number,
       current_setting('server_version')                    AS version,
       current_setting('server_encoding')                   AS encoding,
       pg_is_in_recovery()                                  AS is_replica,
       current_setting('transaction_read_only')::bool       AS is_read_only,
       coalesce(current_setting('tenure.session', true), '') AS mark
