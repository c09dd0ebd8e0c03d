-- Jobs that a launcher gave back because none of its nodes can hold them (db/refusals.rs).

create table job_refusals (
    session_id bigint not null,
    job_id bigint not null,
    batch_job_id bigint,
    message text not null,
    refused_at timestamptz not null default clock_timestamp(),
    constraint job_refusals_pkey primary key (session_id, job_id)
);
create index job_refusals_job_id_idx on job_refusals (job_id, refused_at);
create index job_refusals_refused_at_idx on job_refusals (refused_at);

-- Whether there are rows in job_refusals at all, so that an acquire looks there only then.
alter table sessions add column has_refusals boolean not null default false;
