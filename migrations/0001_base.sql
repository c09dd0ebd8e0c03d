-- Users and their credentials, Sites, Apps, BatchJobs. Jobs and all that hangs off them: 0002.

create type batch_job_state as enum
    ('pending_submission', 'queued', 'running', 'finished', 'submit_failed', 'pending_deletion');
create type job_mode as enum ('serial', 'mpi');

create table users (
    id bigint generated always as identity constraint users_pkey primary key,
    username text not null constraint users_username_key unique
        constraint users_username_length check (length(username) between 1 and 256),
    -- argon2id in PHC format; null for accounts of an identity provider.
    password_hash text,
    created_at timestamptz not null default now()
);

-- Keys that sign access tokens. The newest unretired one signs, all unretired ones verify.
create table signing_keys (
    kid text constraint signing_keys_pkey primary key,
    secret bytea not null,
    created_at timestamptz not null default now(),
    retired_at timestamptz
);

-- Failed logins of the last minutes, so that all processes count together.
create table login_failures (
    id bigint generated always as identity constraint login_failures_pkey primary key,
    -- What the limit holds for: a user name or a peer's address.
    subject text not null,
    failed_at timestamptz not null default now()
);
create index login_failures_subject_failed_at on login_failures (subject, failed_at);

create table sites (
    id bigint generated always as identity constraint sites_pkey primary key,
    owner_id bigint not null constraint sites_owner_fkey references users on delete cascade,
    name text not null,
    path text not null,
    globus_endpoint_id uuid,
    backfill_windows jsonb not null,
    queued_jobs jsonb not null,
    optional_batch_job_params jsonb not null,
    allowed_projects jsonb not null,
    allowed_queues jsonb not null,
    transfer_locations jsonb not null,
    node_shape jsonb,
    last_refresh timestamptz not null default clock_timestamp(),
    creation_date timestamptz not null default clock_timestamp(),
    constraint sites_owner_name_key unique (owner_id, name)
);

create table apps (
    id bigint generated always as identity constraint apps_pkey primary key,
    site_id bigint not null constraint apps_site_fkey references sites on delete cascade,
    owner_id bigint not null constraint apps_owner_fkey references users on delete cascade,
    name text not null,
    serialized_class text not null,
    source_code text not null,
    description text not null,
    parameters jsonb not null,
    transfers jsonb not null,
    -- Null for Balsam's Apps, whose hooks nobody can see.
    command text,
    hooks jsonb not null,
    max_restarts integer,
    constraint apps_site_name_key unique (site_id, name)
);
create index apps_owner on apps (owner_id, id);

-- Apps that are gone while their Jobs are still being removed behind: those Jobs are invisible.
create table deleted_apps (
    app_id bigint constraint deleted_apps_pkey primary key,
    site_id bigint not null,
    owner_id bigint not null,
    deleted_at timestamptz not null default now()
);
create index deleted_apps_owner on deleted_apps (owner_id, app_id);

create table batch_jobs (
    id bigint generated always as identity constraint batch_jobs_pkey primary key,
    site_id bigint not null constraint batch_jobs_site_fkey references sites on delete cascade,
    owner_id bigint not null constraint batch_jobs_owner_fkey references users on delete cascade,
    scheduler_id text,
    project text not null,
    queue text not null,
    num_nodes integer not null,
    wall_time_min integer not null,
    job_mode job_mode not null,
    optional_params jsonb not null,
    filter_tags jsonb not null,
    partitions jsonb,
    state batch_job_state not null default 'pending_submission',
    status_info jsonb not null default '{}',
    start_time timestamptz,
    end_time timestamptz
);
-- The agent asks by Site and state every few seconds, launchers by Site and scheduler id.
create index batch_jobs_site_state on batch_jobs (site_id, state);
create index batch_jobs_owner on batch_jobs (owner_id, id);
create index batch_jobs_scheduler on batch_jobs (site_id, scheduler_id) where scheduler_id is not null;

-- Answers of POST requests that carried an Idempotency-Key; removed after a day.
create table idempotency_keys (
    owner_id bigint not null constraint idempotency_keys_owner_fkey references users on delete cascade,
    key text not null constraint idempotency_keys_key_length check (length(key) <= 255),
    -- SHA-256 of method, path and body: the same key with another request is an error.
    request_hash bytea not null,
    -- Null while the first request still runs in its transaction.
    status smallint,
    answer bytea,
    created_at timestamptz not null default now(),
    constraint idempotency_keys_pkey primary key (owner_id, key)
);
create index idempotency_keys_created_at on idempotency_keys (created_at);
