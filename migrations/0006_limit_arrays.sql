-- Arrays of Jobs that hold themselves to so many Jobs at once (db/array_limit.rs).

create table array_limits (
    array_id bigint constraint array_limits_pkey primary key,
    owner_id bigint not null,
    at_once bigint not null constraint array_limits_at_once_check check (at_once > 0),
    -- How many more may go on now. Below 0 where an owner restarted Jobs by hand.
    room bigint not null
) with (fillfactor = 50);

-- A Job of such an array waits for the array itself: it has an edge to the negative of the array's
-- id, which is open until it is the Job's turn. These are the ones whose turn is yet to come.
create index job_edges_turn_idx on job_edges (parent_id, child_id) where parent_id < 0 and met is null;
