-- What a Site's agent takes (db/staging.rs): a transfer that is pending, since its Job came to the step that waits for it.
-- Null for all others, such as the inputs of a Job that still waits for its parents or was cancelled.
alter table transfers add column due_at timestamptz;
update transfers t set due_at = j.last_update from jobs j where j.id = t.job_id and t.state = 'pending'
    and j.state = (case t.direction when 'in' then 'READY' else 'POSTPROCESSED' end)::job_state;
-- In the order in which batches of one direction and one location are taken. It holds what is due and nothing else.
create index transfers_due_idx on transfers (site_id, direction, location_alias, due_at, id) where due_at is not null;
-- Batches are taken at an end of the index: what they leave there is cleaned up soon (see 0009).
alter table transfers set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0);
