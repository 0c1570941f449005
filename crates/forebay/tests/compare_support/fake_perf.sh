#!/bin/sh
# A substitute for perf, first in PATH. Prints the file `samples` next to its folder. FAKE_PERF selects
# a fault: refused (by the kernel), dies (writing fails in the middle), full (ends in the middle, without
# an error), mute (no samples), garbage (unreadable data), endless (never ends).
# Each call adds a line with its arguments to `perf-calls`.
here=${0%/bin/perf}
echo "$*" >>"$here/perf-calls"
case $1 in
record)
    if [ "$FAKE_PERF" = refused ]; then
        echo 'Access to performance monitoring and observability operations is limited.' >&2
        exit 255
    fi
    while [ "$1" != -o ]; do shift; done
    data=$2
    while [ "$1" != -- ]; do shift; done
    shift
    echo recorded >"$data"
    case $FAKE_PERF in
    dies | full)
        "$@" &
        until [ -e "${data%/*}/started" ]; do sleep 0.01; done
        kill $!
        [ "$FAKE_PERF" = full ] && exit 0
        echo 'failed to write perf data, error: No space left on device' >&2
        exit 255
        ;;
    esac
    "$@"
    ;;
script)
    [ "$FAKE_PERF" = mute ] && exit 0
    if [ "$FAKE_PERF" = garbage ]; then
        echo 'incompatible file format (rerun with -v to learn more)' >&2
        exit 255
    fi
    cat "$here/samples"
    [ "$FAKE_PERF" = endless ] && echo reading >"$here/reading" && sleep 600
    exit 0
    ;;
esac
