#!/bin/sh
# A router that goes by text, over the instant engines: vllm-router, sglang-router or smg from VENV (see README.md). Each
# needs a VENV of its own: smg and sglang-router both install a program called smg.
#   text-router.sh VENV vllm-router
set -eu
venv=$1
program=$2
shift 2
[ "$program" = vllm-router ] && launch= || launch=launch
# Their metrics have a port of their own, which must be free as well.
# shellcheck disable=SC2086
exec "$venv/bin/$program" $launch --worker-urls $WORKERS --policy cache_aware --host 127.0.0.1 --port "$PORT" \
	--prometheus-port $((PORT + 1)) "$@"
