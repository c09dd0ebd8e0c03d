-- Jobs that a launcher may take, by what tells one Job's chances from another's (db/kinds.rs): an acquire that
-- wants only some Apps or shapes goes from kind to kind instead of reading past Jobs that do not fit.
create index jobs_runnable_kind_idx on jobs
    (site_id, tag_set, app_id, num_nodes, ranks_per_node, wall_time_min, node_packing_count, priority desc, id)
    where session_id is null and state in ('PREPROCESSED', 'RESTART_READY');
