-- After the clock was set forward, nothing is deleted by age until the clock has proved stable.

-- Until then nothing is deleted by age, because the clock is in doubt. Null: never held.
alter table service add column retention_held_until integer;
