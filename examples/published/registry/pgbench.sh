#!/bin/sh
# Loads the PostgreSQL whose socket is at URL with pgbench's own transactions, for whole seconds.
#   sh pgbench.sh unix:DIR/.s.PGSQL.5432 SECONDS CLIENTS SEED kept|each
set -eu
socket=${1#unix:}
host=${socket%/*}
seconds=$(printf %.0f "$2")
[ "$seconds" -ge 1 ] || seconds=1
[ "$5" = each ] && new=-C || new=
export PGHOST="$host" PGUSER=postgres PGDATABASE=postgres
# Only the first run, the warm-up, creates the tables.
psql -qtc "select 1 from pgbench_accounts limit 1" >/dev/null 2>&1 || pgbench -q -i 2>&1
exec pgbench -n $new -c "$3" -T "$seconds" --random-seed="$4"
