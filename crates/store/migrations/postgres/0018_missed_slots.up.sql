-- Slots of a schedule that passed while nobody could fire them, and that its policy left out.
alter table triggers add column missed bigint not null default 0;
alter table triggers add column last_missed_at timestamptz;
