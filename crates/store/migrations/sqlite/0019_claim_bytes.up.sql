-- Size of the payload of each live job, so that a claim stops at a number of bytes without reading the payloads.

-- Size of `payload` as text.
alter table jobs add column payload_bytes integer generated always as (octet_length(payload)) virtual;
