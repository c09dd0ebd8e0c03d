-- Logins that can be revoked, refresh tokens, device codes, secrets of launchers.
-- Every secret is stored as its SHA-256 hash.

create type login_kind as enum ('password', 'device', 'site', 'launcher');

-- What tokens stem from: one login of a user, or the credential of one Site's agent or of one
-- BatchJob's launcher. An access token names its login and dies with it.
-- No foreign keys to sites and batch_jobs: a login outlives them, revoked, until its tokens have lapsed.
create table logins (
    id bigint generated always as identity constraint logins_pkey primary key,
    user_id bigint not null constraint logins_user_fkey references users on delete cascade,
    kind login_kind not null,
    site_id bigint,
    batch_job_id bigint,
    -- What people recognise it by: the program and the address it came from.
    client text not null,
    created_at timestamptz not null default now(),
    last_used_at timestamptz not null default now(),
    -- No token of it is good after this.
    expires_at timestamptz not null,
    revoked_at timestamptz,
    constraint logins_bound check ((kind in ('site', 'launcher')) = (site_id is not null)),
    constraint logins_launcher check ((kind = 'launcher') = (batch_job_id is not null))
);
create index logins_user on logins (user_id, id);
create index logins_site on logins (site_id) where site_id is not null and revoked_at is null;
create index logins_batch_job on logins (batch_job_id) where batch_job_id is not null and revoked_at is null;
-- Every process reads these every few seconds.
create index logins_revoked on logins (expires_at) where revoked_at is not null;

create table refresh_tokens (
    token_hash bytea constraint refresh_tokens_pkey primary key,
    login_id bigint not null constraint refresh_tokens_login_fkey references logins on delete cascade,
    -- The token that was exchanged for this one.
    predecessor bytea,
    -- When a token that this one was exchanged for was itself exchanged: from then on whoever still
    -- sends this one is a thief, or was robbed.
    spent_at timestamptz,
    created_at timestamptz not null default now()
);
create index refresh_tokens_login on refresh_tokens (login_id);

create table device_logins (
    device_hash bytea constraint device_logins_pkey primary key,
    user_code text not null constraint device_logins_user_code_key unique,
    client_id uuid not null,
    scope text not null,
    client text not null,
    expires_at timestamptz not null,
    -- Who approved it.
    user_id bigint constraint device_logins_user_fkey references users on delete cascade,
    denied boolean not null default false
);
create index device_logins_expires_at on device_logins (expires_at);

-- What an agent leaves for a launcher, which exchanges it once for a credential of its own.
create table launcher_secrets (
    secret_hash bytea constraint launcher_secrets_pkey primary key,
    batch_job_id bigint not null
        constraint launcher_secrets_batch_job_fkey references batch_jobs on delete cascade,
    created_at timestamptz not null default now(),
    exchanged_at timestamptz,
    login_id bigint
);
create index launcher_secrets_batch_job on launcher_secrets (batch_job_id);
