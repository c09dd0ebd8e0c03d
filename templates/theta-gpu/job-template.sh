#!/bin/bash
# copal-agent renders the template of this script for each BatchJob and submits it with qsub, which gets
# the name of the job and the place of its output on the command line. A value in two braces is quoted for the
# shell where it needs that, one in three braces never.
# Variables: batch_job_id job_name project queue num_nodes wall_time_min job_mode filter_tags partitions
#            optional_params site_path launcher_cmd proxy
# Helpers:   hhmmss add sub mul div mod quote, and within #if: eq ne gt gte lt lte and or not
# `copal site sync` tells what is wrong with a template.
#COBALT -n {{num_nodes}}
#COBALT -t {{wall_time_min}}
{{#if queue}}
#COBALT -q {{queue}}
{{/if}}
{{#if project}}
#COBALT -A {{project}}
{{/if}}
#COBALT --attrs filesystems={{optional_params.filesystems}}{{#if optional_params.mig_count}}:mig-mode=true{{/if}}

{{#if proxy}}
export https_proxy={{proxy}}
{{/if}}

# shellcheck disable=SC2317 # defined anew where GPUs are split
run() { exec "$@"; }

{{#if optional_params.mig_count}}
# Every GPU of every node in so many slices, and whole again at the end.
mig_count={{optional_params.mig_count}}
case "$mig_count" in
  2) profiles=9,9 ;;
  3) profiles=14,14,14 ;;
  7) profiles=19,19,19,19,19,19,19 ;;
  *) echo "optional param mig_count is 2, 3 or 7, not $mig_count" >&2 && exit 2 ;;
esac
on_each_node() { mpirun -hostfile "$COBALT_NODEFILE" -n {{num_nodes}} -npernode 1 "$@"; }
on_each_node nvidia-smi mig -cgi "$profiles" -C || exit 1
run() {
  "$@" &
  local launcher=$! code
  # The scheduler's signals reach the launcher; its end is waited for all the same.
  trap 'kill -TERM "$launcher"' TERM USR1
  wait "$launcher" && code=0 || code=$?
  while kill -0 "$launcher" 2>/dev/null; do
    wait "$launcher" && code=0 || code=$?
  done
  on_each_node sh -c 'nvidia-smi mig -dci; nvidia-smi mig -dgi'
  exit "$code"
}
{{/if}}

run {{launcher_cmd}}
