#!/bin/bash
# copal-agent renders the template of this script for each BatchJob. A value in two braces is quoted for the
# shell where it needs that, one in three braces never.
# Variables: batch_job_id job_name project queue num_nodes wall_time_min job_mode filter_tags partitions
#            optional_params site_path launcher_cmd proxy
# Helpers:   hhmmss add sub mul div mod quote, and within #if: eq ne gt gte lt lte and or not
# `copal site sync` tells what is wrong with a template.
{{#if optional_params.shout}}
echo {{optional_params.shout}}
{{/if}}

{{> launch}}
