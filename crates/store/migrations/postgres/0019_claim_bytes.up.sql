-- Size of the payload of each live job, so that a claim stops at a number of bytes without reading the payloads.

alter table jobs add column payload_bytes integer generated always as (octet_length(payload::text)) stored;
comment on column jobs.payload_bytes is 'Size of `payload` as text.';
