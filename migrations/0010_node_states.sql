-- How many nodes of a Site's scheduler are idle, allocated and down, by queue.
alter table sites add column node_states jsonb not null default '{}';
