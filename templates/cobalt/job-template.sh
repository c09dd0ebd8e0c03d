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
{{#if optional_params.attrs}}
#COBALT --attrs {{optional_params.attrs}}
{{/if}}

{{> launch}}
