-- Lists begin at an end of an index: the newest events, the oldest Jobs. Where many rows were deleted
-- there, each list steps over what they left until it is cleaned up, which by default is at a fifth of the table.
alter table events set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table job_details set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table job_tags set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
