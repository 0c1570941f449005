#!/bin/sh
# Loads a server from N nodes of a Slurm cluster, waits for the end, and adds up the results.
#
#     slurm.sh N URL [options of forebay bench]
#
# Options are those of the whole load. The exit code is that of `forebay merge`. Environment:
#   DELAY    seconds from now to the common start (60): by then, all nodes must run their shard
#   RESULTS  directory on a file system that all nodes share (./results)
#   FOREBAY  the program on the nodes (forebay)
#   SBATCH   options for sbatch, such as '--partition=load'
set -eu

[ $# -ge 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
shards=$1
shift

here=$(cd "$(dirname "$0")" && pwd)
FOREBAY=${FOREBAY:-forebay}
RESULTS=${RESULTS:-results}
mkdir -p "$RESULTS"
RESULTS=$(cd "$RESULTS" && pwd)
START=$(($(date +%s) + ${DELAY:-60}))
export FOREBAY RESULTS START

rm -f "$RESULTS"/shard-*.json
# sbatch --wait fails if a task fails. Its result is then missing, and the merge names it.
# shellcheck disable=SC2086 # SBATCH may have several options
sbatch --wait --array="1-$shards" --chdir="$RESULTS" --export=ALL ${SBATCH:-} \
    "$here/bench.sbatch" "$@" || echo "slurm.sh: at least one shard failed, see $RESULTS/shard-*.log" >&2

exec "$FOREBAY" merge "$RESULTS"/shard-*.json --json "$RESULTS/merged.json"
