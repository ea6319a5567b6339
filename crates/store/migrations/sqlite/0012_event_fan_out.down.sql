-- Rows of the outbox get their data back, and runs that are not written yet are written.
update outbox set data = (select e.data from outbox_events e where e.id = outbox.event_id) where is_shared;
insert into outbox (id, tenant, trigger_id, event_id, source, op, depth, event, data, created_at, due_at, attempts)
select randomblob(16), e.tenant, unhex(replace(t.value, '-', '')), e.id, e.source, e.op, e.depth, e.event, e.data, e.created_at, e.created_at, '[]'
from outbox_fan_outs f, json_each(f.triggers) t, json_each(f.events) n
    join outbox_events e on e.id = unhex(replace(n.value, '-', ''))
where true
on conflict (trigger_id, event_id) do nothing;
drop index outbox_shared;
drop index outbox_tenant;
alter table outbox drop column is_shared;
alter table outbox drop column data_bytes;
drop table outbox_fan_outs;
drop table outbox_events;
