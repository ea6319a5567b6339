-- Rows of the outbox get their data back, and runs that are not written yet are written.
update outbox o set data = e.data from outbox_events e where o.is_shared and e.id = o.event_id;
insert into outbox (id, tenant, trigger_id, event_id, source, op, depth, event, data, created_at, due_at, attempts)
select gen_random_uuid(), e.tenant, t.value::uuid, e.id, e.source, e.op, e.depth, e.event, e.data, e.created_at, e.created_at, '[]'
from outbox_fan_outs f, json_array_elements_text(f.triggers) t, json_array_elements_text(f.events) n
    join outbox_events e on e.id = n.value::uuid
on conflict (trigger_id, event_id) do nothing;
drop index outbox_shared;
drop index outbox_tenant;
alter table outbox drop column is_shared;
alter table outbox drop column data_bytes;
drop table outbox_fan_outs;
drop table outbox_events;
