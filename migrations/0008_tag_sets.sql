-- Tag sets: Jobs of one Site with the same tags (db/tag_sets.rs). Acquires and counts by tag go set by
-- set, so that neither depends on how many Jobs there are.

create table tag_sets (
    site_id bigint not null,
    -- A hash of the tags, the same at all Sites.
    tag_set bigint not null,
    owner_id bigint not null,
    tags jsonb not null,
    created_at timestamptz not null default clock_timestamp(),
    -- From then on new Jobs are not put into it, since it is about to be dissolved.
    closed_at timestamptz,
    constraint tag_sets_pkey primary key (site_id, tag_set)
    -- No foreign key to sites: a check of it could meet the deletion of the Site half way.
);
create index tag_sets_owner_id_idx on tag_sets (owner_id);

-- 0: tags without a set of their own. 1: no tags.
alter table jobs add column tag_set bigint not null default 0;
alter table job_tallies add column tag_set bigint not null default 0;

-- The orders of acquire once more, within a tag set. Jobs without tags are not there.
create index jobs_tagged_fifo_idx on jobs (site_id, tag_set, priority desc, id)
    where session_id is null and state in ('PREPROCESSED', 'RESTART_READY') and tag_set <> 1;
create index jobs_tagged_small_first_idx on jobs
    (site_id, tag_set, priority desc, num_nodes, node_packing_count desc, wall_time_min desc, id)
    where session_id is null and state in ('PREPROCESSED', 'RESTART_READY') and tag_set <> 1;
create index jobs_tagged_long_large_first_idx on jobs
    (site_id, tag_set, priority desc, wall_time_min desc, num_nodes desc, node_packing_count desc, id)
    where session_id is null and state in ('PREPROCESSED', 'RESTART_READY') and tag_set <> 1;
create index jobs_tagged_shortest_first_idx on jobs (site_id, tag_set, priority desc, wall_time_min, id)
    where session_id is null and state in ('PREPROCESSED', 'RESTART_READY') and tag_set <> 1;
