#!/bin/sh
# Settling a batch and claiming the next, in the cells of this decision, each on fresh tables that were never
# analysed. Run it on a machine that does nothing else:
#   cargo build --release && cargo xtask postgres sh docs/decisions/0005/run.sh
set -eu
here=$(dirname "$0")
tenure=${TENURE:-target/release/tenure}
jobs=300000

cell() { # title, tenants, waiting, unhandled, held horizon, clients, batch, script
    "$tenure" --db "$TENURE_TEST_POSTGRES" migrate down --yes >/dev/null 2>&1 || true
    "$tenure" --db "$TENURE_TEST_POSTGRES" migrate up >/dev/null 2>&1
    fill() { [ "$3" = 0 ] || psql -q -v n="$3" -v kind="$1" -v tenants="$2" -v delay="$4" -f "$here/fill.sql"; }
    fill work 1 "$3" 3600000
    fill other 1 "$4" 0
    fill work "$2" "$jobs" 0
    holder=
    if [ "$5" = held ]; then
        { echo 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tenure.meta;'; sleep 60; } | psql -q >/dev/null &
        holder=$!
        until [ "$(psql -Atc "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'")" -gt 0 ]; do :; done
    fi
    lane=$(psql -Atc "SELECT tenure.lane('default', '', 'work', false)")
    transactions=$((jobs / $7 / $6 - 2))
    rate=$(pgbench -n -M prepared -c "$6" -j 2 -t "$transactions" -D ids='{}' -D tokens='{}' -D verbs='{}' -D none='{}' \
        -D marks='{}' -D cursor=0 -D n="$7" -D lane="$lane" -f "$here/$8.pgbench" 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p')
    [ -z "$holder" ] || kill "$holder"
    echo "$1: $(echo "$rate $7" | awk '{ printf "%d", $1 * $2 }') jobs/s"
}

for round in 1 2 3; do
    cell "raw, 2 clients, 500" 1 0 0 free 2 500 raw
    cell "clean, 2 clients, 500" 1 0 0 free 2 500 exchange
done
cell "raw, 1 client, 500" 1 0 0 free 1 500 raw
cell "clean, 1 client, 500" 1 0 0 free 1 500 exchange
cell "raw, 4 clients, 1000" 1 0 0 free 4 1000 raw
cell "clean, 4 clients, 1000" 1 0 0 free 4 1000 exchange
cell "1,000,000 waiting" 1 1000000 0 free 2 500 exchange
cell "1,000 tenants" 1000 0 0 free 2 500 exchange
cell "300,000 of another kind" 1 0 300000 free 2 500 exchange
cell "held horizon" 1 0 0 held 2 500 exchange
