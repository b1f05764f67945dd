#!/usr/bin/env bash
# One night of a sweep, for cron or a systemd timer: updates nothing, waits for nobody, mails nothing by itself.
#   nightly.sh CHECKOUT [SWEEP]     exit code of `primus-search nightly`; 75 when another night is still running
set -euo pipefail
checkout=$(cd "${1:?usage: nightly.sh CHECKOUT [SWEEP]}" && pwd)
sweep=${2:-sweeps/nightly.yaml}
command=${PRIMUS_SEARCH:-$checkout/.venv/bin/primus-search}
cd "$checkout"
folder=results/runs/nightly/$(basename "$sweep" .yaml)
mkdir -p "$folder"
exec 9>"$folder/.running"
flock --nonblock 9 || exit 75
status=0
"$command" nightly "$sweep" --out "$folder" >"$folder/last.log" 2>&1 || status=$?
# cron mails what is printed: nothing on a good night, the summary on a bad one.
if [ "$status" -eq 1 ]; then cat "$folder/summary.md"; elif [ "$status" -ne 0 ]; then cat "$folder/last.log"; fi
exit "$status"
