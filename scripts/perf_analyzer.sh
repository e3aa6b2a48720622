#!/usr/bin/env bash
# Runs an unmodified perf_analyzer against a running mesh, in the ways that its users do, and
# checks that each ends well and that the server-side section shows queue and compute times.
#
#   scripts/perf_analyzer.sh BINARY [HOST:PORT] [MODEL]
#
# The shared-memory runs need SITS_PREPROCESS_ALLOW_CLIENT_SHM=true on the front door and the
# client on its host: SITS_PREPROCESS_ALLOW_CLIENT_SHM=true sits up
set -euo pipefail

if [[ $# -lt 1 || ! -x $1 ]]; then
    echo "usage: $0 BINARY [HOST:PORT] [MODEL]: BINARY is the perf_analyzer to run" >&2
    exit 2
fi
binary=$1 address=${2:-127.0.0.1:8001} model=${3:-mlp}
# A number of requests, not windows until figures are stable: this is a check, not a benchmark.
common=(-m "$model" -i grpc -u "$address" --request-count "${REQUESTS:-1000}")
output=$(mktemp)
trap 'rm -f "$output"' EXIT

number() { # the first number that follows text $1 in the output
    grep -oE "$1 *[0-9]+(\.[0-9]+)?" "$output" | head -1 | grep -oE '[0-9.]+$' || echo 0
}

run() { # a name, then further arguments of perf_analyzer
    local name=$1
    shift
    if ! "$binary" "${common[@]}" "$@" >"$output" 2>&1; then
        echo "$name: perf_analyzer failed; its output ends with" >&2
        tail -5 "$output" >&2
        exit 1
    fi
    local queue infer
    queue=$(number 'queue') infer=$(number 'compute infer')
    if [[ $queue == 0 || $infer == 0 ]]; then
        echo "$name: no server-side queue or compute time:" >&2
        grep -A5 'Server:' "$output" >&2 || tail -5 "$output" >&2
        exit 1
    fi
    printf '%-34s %9s %9s %9s %9s %9s %9s %9s\n' "$name" "$(number 'throughput:')" \
        "$(number 'p50 latency:')" "$(number 'p99 latency:')" "$queue" \
        "$(number 'compute input')" "$infer" "$(number 'compute output')"
}

"$binary" --version 2>&1 | head -1
echo "model $model at $address; times in microseconds"
printf '%-34s %9s %9s %9s %9s %9s %9s %9s\n' run infer/s p50 p99 queue input infer output
run unary
run async --async --concurrency-range 4:4:1
run streaming --async --streaming --concurrency-range 4:4:1
run '-b 4' -b 4
run 'shared memory' --shared-memory system
run 'shared memory, streaming, -b 4' --shared-memory system --async --streaming -b 4 \
    --concurrency-range 2:2:1
run 'a gold tenant, by parameter' --request-parameter sits_tenant:gold:string
