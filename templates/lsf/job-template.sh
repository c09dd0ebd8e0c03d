#!/bin/bash
# copal-agent renders the template of this script for each BatchJob and submits it with bsub, which gets
# the name of the job and the place of its output on the command line. A value in two braces is quoted for the
# shell where it needs that, one in three braces never.
# Variables: batch_job_id job_name project queue num_nodes wall_time_min job_mode filter_tags partitions
#            optional_params site_path launcher_cmd proxy
# Helpers:   hhmmss add sub mul div mod quote, and within #if: eq ne gt gte lt lte and or not
# `copal site sync` tells what is wrong with a template.
#BSUB -n {{num_nodes}}
#BSUB -R "span[ptile=1]"
#BSUB -x
#BSUB -W {{wall_time_min}}
{{#if queue}}
#BSUB -q {{queue}}
{{/if}}
{{#if project}}
#BSUB -P {{project}}
{{/if}}
{{#if optional_params.reservation}}
#BSUB -U {{optional_params.reservation}}
{{/if}}

{{> launch}}
