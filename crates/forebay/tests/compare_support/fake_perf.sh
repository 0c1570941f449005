#!/bin/sh
# A stand-in for perf, in place of which PATH has it. It prints the text in the file `samples` beside its
# folder. FAKE_PERF: refused (as the kernel does), dies (after its first samples), full (of what it may
# write, which ends it), mute (it has no samples), garbage (it fails to read them), endless (it reads for ever).
# Each call leaves a line with its arguments in `perf-calls`.
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
