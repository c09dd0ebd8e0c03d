#!/bin/bash
# copal-agent renders the template of this script for each BatchJob and submits it with qsub, which gets
# the name of the job and the place of its output on the command line. A value in two braces is quoted for the
# shell where it needs that, one in three braces never.
# Variables: batch_job_id job_name project queue num_nodes wall_time_min job_mode filter_tags partitions
#            optional_params site_path launcher_cmd proxy
# Helpers:   hhmmss add sub mul div mod quote, and within #if: eq ne gt gte lt lte and or not
# `copal site sync` tells what is wrong with a template.
#PBS -l select={{num_nodes}}{{#if optional_params.chunk}}:{{optional_params.chunk}}{{/if}}
#PBS -l walltime={{hhmmss wall_time_min}}
{{#if optional_params.place}}
#PBS -l place={{optional_params.place}}
{{/if}}
{{#if optional_params.filesystems}}
#PBS -l filesystems={{optional_params.filesystems}}
{{/if}}
{{#if queue}}
#PBS -q {{queue}}
{{/if}}
{{#if project}}
#PBS -A {{project}}
{{/if}}

{{> launch}}
