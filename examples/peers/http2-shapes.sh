#!/bin/sh
# Runs http2.toml for 1 x 1, 8 x 1, 8 x 32 and 64 x 8 (connections x streams), one after the other. Passes its
# arguments to each `forebay compare`. The reports are in http2-report/SHAPE. Set FOREBAY if the program is not in PATH.
set -eu
dir=$(cd "$(dirname "$0")" && pwd)
file=
trap 'rm -f "$file"' EXIT
trap 'exit 130' HUP INT TERM
for shape in 1x1 8x1 8x32 64x8; do
    # The copy is in the directory of the original, because it names files there.
    file=$dir/http2-$shape.toml
    sed -e "s/^connections = .*/connections = ${shape%x*}/" -e "s/^streams = .*/streams = ${shape#*x}/" \
        -e "s/^title = .*/title = \"HTTP\/2 over TLS, $shape\"/" "$dir/http2.toml" >"$file"
    "${FOREBAY:-forebay}" compare "$file" --out "http2-report/$shape" "$@"
    rm -f "$file"
done
