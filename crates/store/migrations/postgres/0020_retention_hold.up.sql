-- After the clock was set forward, nothing is deleted by age until the clock has proved stable.

alter table service add column retention_held_until timestamptz;
comment on column service.retention_held_until is 'Until then nothing is deleted by age, because the clock is in doubt. Null: never held.';
