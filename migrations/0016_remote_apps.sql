-- Apps that their owner makes through the API: what the Site's agent writes into their file beside the other columns, null for an
-- App whose file the owner wrote; and why the Site does not run it, null once that file is written.
alter table apps add column remote jsonb, add column refusal text;
alter table apps add constraint apps_refusal check (refusal is null or remote is not null);
