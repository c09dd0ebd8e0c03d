{{#if proxy}}
export https_proxy={{proxy}}
{{/if}}

# `exec`, so that the scheduler's signals reach the launcher.
exec {{launcher_cmd}}
