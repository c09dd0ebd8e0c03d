-- An App whose file is gone from its Site while there are Jobs of it. The mark was in the description before.
alter table apps add column gone boolean not null default false;
update apps set gone = true, description = ltrim(substr(description, length('[gone from the Site]') + 1))
    where starts_with(description, '[gone from the Site]');
