-- Arrays of Jobs: many Jobs from one template, by one request (db/job_array.rs).

create sequence job_array_ids;
-- The Jobs of an array, in their order.
create index job_details_array_id_idx on job_details (owner_id, array_id, job_id) where array_id is not null;
