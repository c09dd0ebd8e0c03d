-- Nodes that a Site's agent leaves out of its allocations for a while, with the reason.
alter table sites add column nodes_aside jsonb not null default '[]';

-- Whether another allocation with the same nodes may well hold the Job: it lacks time here, or a node that was lost.
alter table job_refusals add column for_now boolean not null default false;
