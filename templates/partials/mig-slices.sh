# Every GPU of every node in so many slices, and whole again at the end. `on_each_node` runs a command once on each.
mig_count={{optional_params.mig_count}}
case "$mig_count" in
  2) profiles=9,9 ;;
  3) profiles=14,14,14 ;;
  7) profiles=19,19,19,19,19,19,19 ;;
  *) echo "optional param mig_count is 2, 3 or 7, not $mig_count" >&2 && exit 2 ;;
esac
make_whole() { on_each_node sh -c 'nvidia-smi mig -dci; nvidia-smi mig -dgi'; }
on_each_node nvidia-smi mig -cgi "$profiles" -C || { make_whole; exit 1; }
run() {
  "$@" &
  local launcher=$! code
  # The scheduler's signals reach the launcher; its end is waited for all the same.
  trap 'kill -TERM "$launcher"' TERM USR1
  wait "$launcher" && code=0 || code=$?
  while kill -0 "$launcher" 2>/dev/null; do
    wait "$launcher" && code=0 || code=$?
  done
  make_whole
  exit "$code"
}
