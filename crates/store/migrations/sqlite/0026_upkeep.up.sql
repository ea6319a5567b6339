-- When a deletion was last tried: nodes do not repeat each other's, and what cannot be deleted stands in no other's way.
alter table blob_garbage add column tried_at integer not null default 0;
create index blob_garbage_tried_at on blob_garbage (tried_at, since);

-- The mark of the folder in which large artifacts are.
alter table installation add column artifacts text;
