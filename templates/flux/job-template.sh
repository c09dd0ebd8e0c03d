#!/bin/bash
# copal-agent renders the template of this script for each BatchJob and submits it with flux batch, which gets
# the name of the job and the place of its output on the command line. A value in two braces is quoted for the
# shell where it needs that, one in three braces never.
# Variables: batch_job_id job_name project queue num_nodes wall_time_min job_mode filter_tags partitions
#            optional_params site_path launcher_cmd proxy
# Helpers:   hhmmss add sub mul div mod quote, and within #if: eq ne gt gte lt lte and or not
# `copal site sync` tells what is wrong with a template.
# flux: --nodes={{num_nodes}}
# flux: --exclusive
# flux: --time-limit={{wall_time_min}}m
{{#if queue}}
# flux: --queue={{queue}}
{{/if}}
{{#if project}}
# flux: --bank={{project}}
{{/if}}

{{> launch}}
