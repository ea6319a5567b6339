alter table installation drop column artifacts;
drop index blob_garbage_tried_at;
alter table blob_garbage drop column tried_at;
