#!/bin/sh
# Loads a server from N pods of a Kubernetes cluster, waits for the end, and adds up the results.
#
#     IMAGE=registry.example/forebay kubernetes.sh N URL [options of forebay bench]
#
# Options are those of the whole load. The exit code is that of `forebay merge`. Environment:
#   IMAGE     an image with forebay and a shell (required)
#   DELAY     seconds from now to the common start (60): by then, all pods must run
#   DEADLINE  seconds after which Kubernetes ends the job (3600)
#   RESULTS   directory for the results (./results)
#   DRY_RUN   if it is set, only print the manifest
set -eu

[ $# -ge 2 ] && [ -n "${IMAGE:-}" ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
shards=$1
shift

here=$(cd "$(dirname "$0")" && pwd)
start=$(($(date +%s) + ${DELAY:-60}))
name=forebay-bench-$start
deadline=${DEADLINE:-3600}
results=${RESULTS:-results}

manifest() {
    python3 - "$here/job.yaml" "$name" "$shards" "$deadline" "$IMAGE" "$start" "$@" <<'PYTHON'
import json, sys
template, name, shards, deadline, image, start, *arguments = sys.argv[1:]
# JSON strings are YAML strings, whatever the arguments contain. Kubernetes would expand $(NAME).
quoted = ["- " + json.dumps(text.replace("$(", "$$(")) for text in arguments]
text = open(template).read()
values = {"NAME": name, "SHARDS": shards, "DEADLINE": deadline, "IMAGE": image, "START": start,
          "ARGUMENTS": ("\n" + " " * 12).join(quoted)}
for key in sorted(values, key=len, reverse=True):
    if key != "ARGUMENTS":
        text = text.replace("@" + key, values[key])
sys.stdout.write(text.replace("@ARGUMENTS", values["ARGUMENTS"]))
PYTHON
}

if [ -n "${DRY_RUN:-}" ]; then
    manifest "$@"
    exit
fi

mkdir -p "$results"
rm -f "$results"/shard-*.json
manifest "$@" | kubectl apply -f -
# The job is over if it is complete or has failed. If a shard failed, the merge names it.
until [ -n "$(kubectl get job "$name" \
    -o jsonpath='{.status.conditions[?(@.status=="True")].type}')" ]; do
    sleep 1
done
index=0
while [ "$index" -lt "$shards" ]; do
    file=$results/shard-$((index + 1)).json
    kubectl logs --tail=-1 \
        -l "batch.kubernetes.io/job-name=$name,batch.kubernetes.io/job-completion-index=$index" >"$file"
    [ -s "$file" ] || { echo "kubernetes.sh: shard $((index + 1)) has no result" >&2; rm -f "$file"; }
    index=$((index + 1))
done

exec "${FOREBAY:-forebay}" merge "$results"/shard-*.json --json "$results/merged.json"
