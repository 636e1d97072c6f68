#!/bin/sh
# Dynamo's front end in kv mode over its own mockers, as `kvlane-load bench-proxy --of 'dynamo=sh:.../dynamo.sh VENV'` runs it.
# VENV has ai-dynamo and ai-dynamo-runtime 1.6.1 (see README.md). More words are flags for the front end.
# Mockers have a core of their own choice: engines are not what is measured.
set -eu
venv=$1
shift
state=$(mktemp -d)
export DYN_FILE_KV="$state" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
plane="--discovery-backend file --request-plane tcp --event-plane zmq"
# At its own speed a mocker decodes a token about every 6 ms; otherwise it is to be as quick as it can.
speed=1000000
[ "$PACE_MS" = 0 ] || speed=1
# shellcheck disable=SC2086
taskset -c "$ENGINE_CORE" "$venv/bin/python" -m dynamo.mocker --model-path "$MODEL_DIR" --model-name "$MODEL_NAME" \
	--num-workers "$WORKER_COUNT" --block-size "$BLOCK_SIZE" --num-gpu-blocks-override 100000 --speedup-ratio "$speed" --stagger-delay 0 $plane &
# shellcheck disable=SC2086
exec "$venv/bin/python" -m dynamo.frontend --router-mode kv --http-host 127.0.0.1 --http-port "$PORT" $plane "$@"
