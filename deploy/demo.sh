#!/usr/bin/env bash
# The demonstration behind `make demo`: three simulated engines, the router before them on port 8000, and one
# conversation held twice, behind round robin and behind KV-aware routing. Then everything stays up to be tried, until
# Ctrl-C or for DEMO_SECONDS.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-target/release}
port=${PORT:-8000}
admin=${ADMIN_PORT:-8090}
log=$(mktemp -t kvlane-demo.XXXXXX)
began=$(date +%s%N)

stop() {
    trap - EXIT
    kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    echo "stopped; the log is in $log"
}
pids=()
trap stop EXIT
trap 'exit 0' INT TERM

"$bin/kvlane-worker" --workers 3 >>"$log" 2>&1 &
pids+=($!)
"$bin/kvlane" --port "$port" --admin-port "$admin" --decision-headers true --set server.drain_wait_s=0 \
    --worker http://127.0.0.1:8101 --worker http://127.0.0.1:8102 --worker http://127.0.0.1:8103 >>"$log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do
    curl -sf "http://127.0.0.1:$port/ready" >/dev/null && ready=yes && break
    kill -0 "${pids[@]}" 2>/dev/null || break
    sleep 0.1
done
if [ -z "${ready:-}" ]; then
    echo "the router is not ready; its log:" >&2
    cat "$log" >&2
    exit 1
fi
echo "router ready on port $port after $((($(date +%s%N) - began) / 1000000)) ms, three simulated workers on 8101 to 8103"

document=$(for n in $(seq 300); do printf 'Paragraph %d says how blocks of a prompt are kept and found again. ' "$n"; done)
turns=("What is it about?" "Say more about the second part." "Who keeps the blocks?" "And how are they found?" "Thank you, one line to end.")

# One conversation: each turn sends everything said before, as chats do.
conversation() {
    local messages="{\"role\":\"user\",\"content\":\"[$1] $document\"}" turn=0
    curl -sf "http://127.0.0.1:$admin/admin/mode" -d "{\"mode\":\"$1\",\"reset\":true}" >/dev/null
    printf '\n%-12s %4s  %-18s %8s %8s %9s\n' "$1" turn worker prompt cached "TTFT ms"
    for question in "${turns[@]}"; do
        turn=$((turn + 1))
        messages="$messages,{\"role\":\"user\",\"content\":\"$question\"}"
        local body="{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":16,\"messages\":[$messages]}"
        local out
        out=$(curl -s -D - -w '\nttft %{time_starttransfer}\n' "http://127.0.0.1:$port/v1/chat/completions" -d "$body")
        printf '%-12s %4d  %-18s %8s %8s %9.0f\n' "" "$turn" \
            "$(sed -n 's/^x-kvlane-worker: \([0-9]*\).*/\1/p' <<<"$out")" \
            "$(sed -n 's/.*"prompt_tokens":\([0-9]*\).*/\1/p' <<<"$out" | tail -1)" \
            "$(sed -n 's/.*"cached_tokens":\([0-9]*\).*/\1/p' <<<"$out" | tail -1)" \
            "$(sed -n 's/^ttft \(.*\)/\1/p' <<<"$out" | awk '{print $1 * 1000}')"
        messages="$messages,{\"role\":\"assistant\",\"content\":\"As I said in answer $turn, they are kept in order.\"}"
    done
}

echo "one conversation of five turns over a long document, twice; all times are simulated"
conversation round_robin
conversation kv

cat <<TEXT

Try it:
  curl http://127.0.0.1:$port/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
  curl http://127.0.0.1:$admin/admin/explain -d '{"messages": [{"role": "user", "content": "Hello"}]}'
  curl http://127.0.0.1:$port/metrics
TEXT
if [ -n "${DEMO_SECONDS:-}" ]; then
    sleep "$DEMO_SECONDS"
else
    echo "Ctrl-C stops it."
    while sleep 3600; do :; done
fi
