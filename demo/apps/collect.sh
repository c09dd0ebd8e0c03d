#!/bin/sh
# Stores the result of a run in its Job's data.
set -eu
result=$(cat result.json)
printf '{"data": %s}\n' "$result" > "$COPAL_RESULT"
