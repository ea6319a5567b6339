alter table jobs drop column payload_bytes;
